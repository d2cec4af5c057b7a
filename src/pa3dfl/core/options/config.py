"""One set of dataclasses for file, flags and Python: what a run is."""

import contextlib
import dataclasses
import difflib
import hashlib
import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from pa3dfl.core.errors import UserError
from pa3dfl.core.options.capacity import RULES, default_p_min, parse_ratio
from pa3dfl.core.options.names import DATA, PARTITIONS


def _field(default: Any, help: str, group: str, choices: tuple[str, ...] = ()) -> Any:
    return field(default=default, metadata={"help": help, "group": group, "choices": choices})


RULES_OF_TESTING = ("adapted", "received", "kept")
WHAT, WHO, HOW, TEST, WHERE = "what", "federation", "local training", "evaluation", "where and how it runs"


INITS = ("he", "pytorch")
PRESETS = ("tuned", "paper")

_LEAST = {
    "per_round": 1, "epochs": 1, "batch": 1, "eval_every": 1, "checkpoint_every": 1, "classes_per_client": 1,
    "threads": 0, "eval_clients": 0, "seed": 0, "rounds": 1, "clients": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Config:
    """A run. Fields left at None take the value that suits the data, see the folder `presets`."""

    method: str = _field("pa3dfl", "method, see `pa3dfl methods`; or package.module:Class", WHAT)
    data: str = _field("fashion-mnist-10k", f"{', '.join(DATA)}, or a file.npz with x, y and perhaps client", WHAT)
    model: str | None = _field(None, "cnn-fashion, cnn-cifar100, resnet18-gn, or package.module:factory", WHAT)
    seed: int = _field(0, "every random draw follows from it", WHAT)
    init: str = _field("he", "how weights start in every network and method", WHAT, INITS)
    rounds: int | None = _field(None, "communication rounds", WHAT)
    preset: str = _field("tuned", "where values come from that are not given", WHAT, PRESETS)

    setting: str = _field(
        "hetero", "capacities: ideal, hetero, levels:1,1/4,…, list:1,0.5,… or a file.csv (client, r)", WHO
    )
    capacity_rule: str = _field("width", "width: p² ≤ r; strict: parameters held ≤ r of the full model's", WHO, RULES)
    p_min: str | None = _field(None, "the narrowest width; default 1/16, in the ideal setting 1/8", WHO)
    clients: int | None = _field(None, "how many there are; default 100, or as many as the data names", WHO)
    per_round: int = _field(20, "how many are sampled in each round", WHO)
    robust: str = _field(
        "mean", "what liars are met with: see docs/deploy.md", WHO, ("mean", "median", "trimmed", "clip")
    )
    partition: str | None = _field(None, "who owns which rows", WHO, PARTITIONS)
    dirichlet_alpha: float | None = _field(None, "α of Dirichlet(α·p*): small is more skewed", WHO)
    classes_per_client: int | None = _field(None, "classes of each client in partition 'classes'", WHO)

    lr: float | None = _field(None, "step size of SGD", HOW)
    lr_decay: float = _field(0.998, "factor on it after every round", HOW)
    epochs: int = _field(5, "local epochs a round", HOW)
    batch: int = _field(50, "batch size", HOW)
    weight_decay: float = _field(5e-4, "weight decay of SGD", HOW)
    clip_norm: float = _field(10.0, "largest norm of a gradient; 0 for no limit", HOW)
    augment: bool | None = _field(None, "random crop and flip of images", HOW)

    tested: str = _field(
        "adapted",
        "which model of a client is its score. adapted: what it receives, after one more local training; received: "
        "without that; kept: what its last participation left",
        TEST,
        RULES_OF_TESTING,
    )
    eval_every: int = _field(10, "rounds between evaluations of all clients", TEST)
    eval_clients: int = _field(0, "how many are evaluated, the same ones every time; 0 for all", TEST)
    patience: float = _field(0.2, "stop after this share of the rounds without a better validation; 1: never", TEST)
    select: str = _field("accuracy", "validation measure that picks a client's model", TEST, ("accuracy", "loss"))

    engine: str = _field(
        "auto", "how local work is done", WHERE, ("auto", "sequential", "threaded", "captured", "flower")
    )
    device: str = _field("auto", "auto, cpu or cuda", WHERE)
    precision: str = _field(
        "auto",
        "arithmetic of local work; auto is tf32 on a GPU and fp32 elsewhere; weights stay fp32 in both and in bf16",
        WHERE,
        ("auto", "fp32", "tf32", "bf16", "fp64"),
    )
    threads: int = _field(0, "CPU threads; 0 for all cores. Results are bit-identical for equal counts only", WHERE)
    checkpoint_every: int = _field(1, "rounds between checkpoints: what a crash can cost", WHERE)
    timeout: float = _field(3600.0, "seconds that clients have for an answer; engine flower only", WHERE)
    data_dir: str | None = _field(None, "where to look for data first", WHERE)
    out: str | None = _field(None, "run directory; default runs/DATA-SETTING-METHOD-SEED", WHERE)

    options: Mapping[str, Any] = field(default_factory=dict)
    """The method's own hyper-parameters."""

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            if f.name != "options":
                object.__setattr__(self, f.name, coerce(f.name, getattr(self, f.name), f.type))
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"{name} is {value}: expected at least {least}")
        if self.threads > 1024:
            raise UserError(f"threads is {self.threads}: expected at most 1024")
        for name in ("lr", "lr_decay", "dirichlet_alpha", "patience", "timeout"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise UserError(f"{name} is {value}: expected a number above 0")
        for name in ("weight_decay", "clip_norm"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UserError(f"{name} is {getattr(self, name)}: expected a number from 0")
        for f in dataclasses.fields(self):
            choices, value = f.metadata.get("choices"), getattr(self, f.name)
            if choices and value is not None and value not in choices:
                raise UserError(f"{f.name} is {value!r}: expected one of {', '.join(choices)}")
        if self.p_min is not None:
            self.narrowest()

    def narrowest(self) -> Fraction:
        p_min = default_p_min(self.setting) if self.p_min is None else parse_ratio(self.p_min, "p_min")
        if p_min.numerator != 1:
            raise UserError(f"p_min is {p_min}: expected 1 over a whole number, such as 1/16")
        return p_min

    def hash(self) -> str:
        """Equal for runs that must give equal numbers."""
        # A preset only gives values to other fields.
        irrelevant = {"preset", "out", "data_dir", "checkpoint_every", "timeout"}
        relevant = {k: v for k, v in dataclasses.asdict(self).items() if k not in irrelevant}
        return hashlib.sha256(json.dumps(relevant, sort_keys=True, default=str).encode()).hexdigest()[:12]


def resolve(given: Mapping[str, Any], method_fields: Mapping[str, dataclasses.Field[Any]]) -> Config:
    """A config from what was given (file and flags), over the presets of its data, over the defaults.

    Keys are fields of `Config` or of the method; `methods` holds options by method, as in the presets. None is as
    good as not given.
    """
    given = dict(given)
    by_method = given.pop("methods", None) or {}
    own = {f.name: f for f in dataclasses.fields(Config) if f.name != "options"}
    known = {**own, **method_fields}
    unknown = {k: v for k, v in given.items() if k not in known}
    given = unknown | {k: v for k, v in given.items() if k in known and v is not None}
    data = given.get("data", Config.data)
    setting = str(given.get("setting", Config.setting))
    method = str(given.get("method", Config.method))
    chosen = preset(str(data), method, setting, str(given.get("preset", Config.preset)))
    values = {k: v for k, v in chosen.items() if k in known} | of_method(by_method, method, setting) | given
    for k in values:
        if k not in known:
            close = difflib.get_close_matches(str(k), known, 1)
            hint = f"did you mean {close[0]}?" if close else "see `pa3dfl run --help`"
            raise UserError(f"unknown option {k!r}: {hint}")
    checked = {k: coerce(k, v, known[k].type) for k, v in values.items()}
    options = {k: v for k, v in checked.items() if k in method_fields}
    return Config(**{k: v for k, v in checked.items() if k in own}, options=options)


def preset(data: str, method: str, setting: str, kind: str = "tuned") -> dict[str, Any]:
    """What suits any data, then this data set, then this method on it, then this setting."""
    default = _preset_file("default")
    if data not in DATA:
        return default
    own = _preset_file(data)
    like = own.pop("like", data)
    by_method = _preset_file(f"{kind}/{like}") | _preset_file(f"{kind}/{data}")
    return default | _preset_file(like) | own | of_method(by_method, method, setting)


def of_method(by_method: Any, method: str, setting: str) -> dict[str, Any]:
    """Options of one method, common ones and those of the setting."""
    options = by_method.get(method) or {} if isinstance(by_method, dict) else None
    if not isinstance(options, dict) or not all(isinstance(options.get(k, {}), dict) for k in ("ideal", "hetero")):
        raise UserError("methods must map each method to its options, such as {ditto: {mu: 0.1}}")
    common = {k: v for k, v in options.items() if k not in ("ideal", "hetero")}
    return common | options.get("ideal" if setting == "ideal" else "hetero", {})


def _preset_file(name: str) -> dict[str, Any]:
    file = resources.files("pa3dfl.core.options") / "presets" / f"{name}.yaml"
    return yaml.safe_load(file.read_text()) or {} if file.is_file() else {}


def coerce(name: str, value: Any, kind: Any) -> Any:
    """A value of the field's type, from YAML or a flag's text."""
    allowed = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if value is None and type(None) in allowed:
        return None
    for t in allowed:
        if t is bool and (isinstance(value, bool) or str(value).lower() in ("true", "false", "yes", "no")):
            return value if isinstance(value, bool) else str(value).lower() in ("true", "yes")
        if t is str and not isinstance(value, (dict, list)):
            return str(value)
        if t in (int, float) and not isinstance(value, bool):
            if t is int:
                with contextlib.suppress(ValueError):  # by way of a float, long seeds would lose digits
                    return int(str(value))
            try:
                number = float(value)
            except (TypeError, ValueError, OverflowError):
                continue
            if t is float and not math.isnan(number):
                return number
            if t is int and number.is_integer():
                return int(number)
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    expected = " or ".join(names[t] for t in allowed if t in names)
    raise UserError(f"{name} is {value!r}: expected {expected}")


def read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text())
    except OSError as e:
        raise UserError(f"config {path} cannot be read: {e.strerror}") from None
    except (yaml.YAMLError, ValueError) as e:  # ValueError: not text, or a date such as 2026-13-45
        raise UserError(f"config {path} is not YAML: {' '.join(str(e).split())}") from None
    if not isinstance(values, dict):
        raise UserError(f"config {path} must be a mapping of option: value")
    return values
