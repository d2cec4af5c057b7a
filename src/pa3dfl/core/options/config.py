"""The options of a run, from a config file, flags or Python, and the presets of data sets."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from pa3dfl.core.errors import UserError
from pa3dfl.core.options.capacity import RULES, default_p_min, parse_ratio
from pa3dfl.core.options.names import DATA, MODELS, PARTITIONS
from pa3dfl.core.options.schema import Field, check, coerce, option, suggest

RULES_OF_TESTING = ("adapted", "received", "kept")
WHAT, WHO, HOW, TEST, WHERE = "task", "federation", "local training", "evaluation", "execution"
INITS = ("he", "pytorch")
PRESETS = ("tuned", "paper")
SMALL_CLIENTS = ("refuse", "leave-out")
ROBUST = ("mean", "median", "trimmed", "clip")
ENGINES = ("auto", "sequential", "threaded", "captured", "flower")
PRECISIONS = ("auto", "fp32", "tf32", "bf16", "fp64")
TRACKERS = ("tensorboard", "trackio", "wandb", "mlflow")

LATER = {"newcomers", "newcomer_rounds", "label_column", "client_column", "input_columns", "small_clients"}
"""Options that older runs do not have: they enter a digest only where they are used."""
LATER_OF_METHODS = {("keep", "none")}


@dataclass(frozen=True)
class Config:
    """The options of a run. `resolve` fills fields that are None from the presets of the data set."""

    method: str = option("pa3dfl", "a method that `pa3dfl methods` lists, or package.module:Class", group=WHAT)
    data: str = option(
        "fashion-mnist-10k",
        f"{', '.join(DATA)}; or your own: a .npz, .csv or .parquet, LEAF's .json, or a folder of .json, .txt or images",
        group=WHAT,
    )
    label_column: str | None = option(None, "of a .csv or .parquet: the column to predict; default none", group=WHAT)
    client_column: str | None = option(
        None, "of a .csv or .parquet: the column that says which client owns a row; default none", group=WHAT
    )
    input_columns: str | None = option(
        None, "of a .csv or .parquet: the columns to predict from, separated by commas; default all others", group=WHAT
    )
    model: str | None = option(None, f"{', '.join(MODELS)}, or package.module:factory", group=WHAT)
    seed: int = option(0, "seed of all random numbers", group=WHAT, at_least=0)
    init: str = option(
        "he", "initialisation of weights, the same for all networks and methods", group=WHAT, choices=INITS
    )
    rounds: int | None = option(None, "communication rounds", group=WHAT, at_least=1)
    preset: str = option("tuned", "source of the options that are not given", group=WHAT, choices=PRESETS)

    setting: str = option(
        "hetero", "capacities of clients: ideal, hetero, levels:1,1/4,…, list:1,0.5,… or a .csv (client, r)", group=WHO
    )
    capacity_rule: str = option(
        "width",
        "how capacity r bounds a client's model of width p; width: p² ≤ r; strict: its parameters ≤ r of the full "
        "model's",
        group=WHO,
        choices=RULES,
    )
    p_min: str | None = option(None, "smallest width; default 1/16, in the ideal setting 1/8", group=WHO)
    clients: int | None = option(
        None, "number of clients; default 100, or as many as the data names", group=WHO, at_least=1
    )
    per_round: int = option(20, "clients sampled in each round", group=WHO, at_least=1)
    newcomers: str | None = option(
        None, "clients that join after training: a share (10%), ids (3,17) or a file with ids", group=WHO
    )
    newcomer_rounds: int = option(
        10, "rounds of its own that each newcomer trains", group=WHO, at_least=0, at_most=1000
    )
    robust: str = option(
        "mean", "aggregation robust to malicious updates, see docs/deploy.md", group=WHO, choices=ROBUST
    )
    partition: str | None = option(None, "how rows are distributed to clients", group=WHO, choices=PARTITIONS)
    small_clients: str = option(
        "refuse", "what to do if your own data has clients with fewer than ten rows", group=WHO, choices=SMALL_CLIENTS
    )
    dirichlet_alpha: float | None = option(
        None, "α of Dirichlet(α·p*); smaller values skew labels more", group=WHO, above=0
    )
    classes_per_client: int | None = option(
        None, "classes of each client with --partition classes", group=WHO, at_least=1
    )

    lr: float | None = option(None, "learning rate of SGD", group=HOW, above=0)
    lr_decay: float = option(0.998, "factor on the learning rate after every round", group=HOW, above=0)
    epochs: int = option(5, "local epochs in each round", group=HOW, at_least=1)
    batch: int = option(50, "batch size", group=HOW, at_least=1)
    weight_decay: float = option(5e-4, "weight decay of SGD", group=HOW, at_least=0)
    clip_norm: float = option(10.0, "largest norm of a gradient; 0 for no limit", group=HOW, at_least=0)
    augment: bool | None = option(None, "crop and flip images at random", group=HOW)

    tested: str = option(
        "adapted",
        "model that a client is scored by; received: the one it downloads; adapted: that after one more local "
        "training; kept: the one it trained when it last participated",
        group=TEST,
        choices=RULES_OF_TESTING,
    )
    eval_every: int = option(10, "rounds between evaluations", group=TEST, at_least=1)
    eval_clients: int = option(0, "number of clients evaluated, the same every time; 0 for all", group=TEST, at_least=0)
    patience: float = option(
        0.2, "stop after this share of the rounds without a better validation score; 1: never", group=TEST, above=0
    )
    select: str = option(
        "accuracy", "validation measure that selects a client's model", group=TEST, choices=("accuracy", "loss")
    )

    engine: str = option("auto", "how local training is executed", group=WHERE, choices=ENGINES)
    device: str = option("auto", "auto, cpu or cuda", group=WHERE)
    precision: str = option(
        "auto",
        "arithmetic of local training; auto: tf32 on a GPU, fp32 on a CPU; tf32 and bf16 keep weights in fp32",
        group=WHERE,
        choices=PRECISIONS,
    )
    threads: int = option(
        0,
        "CPU threads; 0 for all cores; only runs with equal counts give bit-identical results",
        group=WHERE,
        at_least=0,
        at_most=1024,
    )
    checkpoint_every: int = option(1, "rounds between checkpoints", group=WHERE, at_least=1)
    timeout: float = option(3600.0, "seconds that clients have for an answer; engine flower only", group=WHERE, above=0)
    data_dir: str | None = option(None, "folder to search for data before the default ones", group=WHERE)
    out: str | None = option(None, "run directory; default runs/DATA-SETTING-METHOD-SEED", group=WHERE)
    track: str | None = option(
        None, f"default none; trackers that follow the run, separated by commas: {', '.join(TRACKERS)}", group=WHERE
    )

    options: Mapping[str, Any] = field(default_factory=dict)
    """The options of the method."""

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            if f.name != "options":
                object.__setattr__(self, f.name, coerce(f.name, getattr(self, f.name), f.type))
        check(self)
        parse_track(self.track)
        if self.p_min is not None:
            self.narrowest()

    def narrowest(self) -> Fraction:
        p_min = default_p_min(self.setting) if self.p_min is None else parse_ratio(self.p_min, "p_min")
        if p_min.numerator != 1:
            raise UserError(f"p_min is {p_min}: expected 1 over a whole number, such as 1/16")
        return p_min

    def hash(self) -> str:
        """A digest that is equal for configs that must give equal results."""
        # A preset acts only through the values that it gives to other fields.
        irrelevant = {"preset", "out", "data_dir", "checkpoint_every", "timeout", "track"}
        relevant = {k: v for k, v in identity(self).items() if k not in irrelevant}
        return hashlib.sha256(json.dumps(relevant, sort_keys=True, default=str).encode()).hexdigest()[:12]


def identity(config: Config) -> dict[str, Any]:
    """The values that a digest covers, without the options of `LATER` that are not used."""
    default = {f.name: f.default for f in dataclasses.fields(config)}
    values = {k: v for k, v in dataclasses.asdict(config).items() if k not in LATER or v != default[k]}
    own = {k: v for k, v in config.options.items() if (k, v) not in LATER_OF_METHODS}
    return values | {"options": own}


def parse_track(text: str | None) -> list[str]:
    """The names of trackers, separated by commas, once each."""
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    for name in names:
        if name not in TRACKERS:
            expected = suggest(name, TRACKERS, f"expected one or several of {', '.join(TRACKERS)}")
            raise UserError(f"track is {text!r}: there is no tracker {name!r}, {expected}")
    return list(dict.fromkeys(names))


def resolve(given: Mapping[str, Any], method_fields: Mapping[str, Field]) -> Config:
    """Build a config. Given values override the presets of the data set, which override the defaults.

    Keys are fields of `Config` or of the method; `methods` maps methods to options, as in the presets. A value of
    None counts as not given.
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
            raise UserError(f"unknown option {k!r}: {suggest(str(k), known, 'see `pa3dfl run --help`')}")
    checked = {k: coerce(k, v, known[k].type) for k, v in values.items()}
    options = {k: v for k, v in checked.items() if k in method_fields}
    return Config(**{k: v for k, v in checked.items() if k in own}, options=options)


def preset(data: str, method: str, setting: str, kind: str = "tuned") -> dict[str, Any]:
    """Preset options, from general to specific: any data, this data set, this method on it, this setting."""
    default = _preset_file("default")
    if data not in DATA:
        return default | ({"model": "mlp-tabular"} if data.endswith((".csv", ".csv.gz", ".parquet")) else {})
    own = _preset_file(data)
    like = own.pop("like", data)
    by_method = _preset_file(f"{kind}/{like}") | _preset_file(f"{kind}/{data}")
    return default | _preset_file(like) | own | of_method(by_method, method, setting)


def of_method(by_method: Any, method: str, setting: str) -> dict[str, Any]:
    """The options of one method: those for all settings, overridden by those for this setting."""
    options = by_method.get(method) or {} if isinstance(by_method, dict) else None
    if not isinstance(options, dict) or not all(isinstance(options.get(k, {}), dict) for k in ("ideal", "hetero")):
        raise UserError("methods must map each method to its options, such as {ditto: {mu: 0.1}}")
    common = {k: v for k, v in options.items() if k not in ("ideal", "hetero")}
    of_setting: dict[str, Any] = options.get("ideal" if setting == "ideal" else "hetero", {})
    return common | of_setting


def _preset_file(name: str) -> dict[str, Any]:
    file = resources.files("pa3dfl.core.options") / "presets" / f"{name}.yaml"
    values: dict[str, Any] | None = yaml.safe_load(file.read_text()) if file.is_file() else None
    return values or {}


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
