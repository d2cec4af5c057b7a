"""A run from its config: the same for Python and for the command line."""

import dataclasses
import hashlib
import shutil
import sys
from collections.abc import Mapping
from fractions import Fraction
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from pa3dfl import methods
from pa3dfl.capacity import capacities, width_of
from pa3dfl.config import Config, read_yaml, resolve
from pa3dfl.data import Arrays, federate, load, partition, split
from pa3dfl.engines import engine_of
from pa3dfl.errors import UserError
from pa3dfl.federation import Federation, Plan, State
from pa3dfl.methods import Method
from pa3dfl.models import Model, factory_of
from pa3dfl.progress import duration
from pa3dfl.report import learning_curve, read_run
from pa3dfl.results import RunDirectory, averages
from pa3dfl.sizes import strict_widths
from pa3dfl.task import Client, LocalTraining, Task

T = TypeVar("T")


def configure(given: Mapping[str, Any]) -> Config:
    """A complete config from what was given; every field is checked and none is left open."""
    cls = methods.find(str(given.get("method", Config.method)))
    config = resolve(given, option_fields(cls))
    defaults = {f.name: f.default for f in option_fields(cls).values()}
    device = device_of(config.device)
    if config.precision == "tf32" and device.type != "cuda":
        raise UserError("precision 'tf32' is arithmetic of CUDA GPUs: use fp32 or bf16 on a CPU")
    return dataclasses.replace(
        config,
        p_min=str(config.narrowest()),
        device=device.type,
        precision=config.precision if config.precision != "auto" else "tf32" if device.type == "cuda" else "fp32",
        threads=config.threads or torch.get_num_threads(),
        out=config.out or f"runs/{Path(config.data).stem}-{_slug(config.setting)}-{cls.name}-{config.seed}",
        options=defaults | dict(config.options),
    )


def run(config: Config | None = None, overwrite: bool = False, **given: Any) -> dict[str, Any]:
    """Train from the start; returns the summary. `run(method="fedavg", rounds=20)` is enough."""
    config = configure(_given(config) | given)
    directory = RunDirectory(Path(config.out or ""))
    if directory.path.exists() and not directory.path.is_dir():
        raise UserError(f"{directory.path} is a file: choose another --out")
    if directory.path.exists() and any(directory.path.iterdir()):
        if not overwrite:
            raise UserError(
                f"{directory.path} is not empty: go on with `pa3dfl resume {directory.path}`, choose another --out, "
                "or say --overwrite"
            )
        if not directory.config.exists():
            raise UserError(
                f"{directory.path} is not a run directory: it will not be overwritten; choose another --out"
            )
    arrays = load(config.data, folder_of(config))
    federation = build(config, arrays, directory)
    try:
        if directory.path.exists():
            shutil.rmtree(directory.path)
        directory.path.mkdir(parents=True)
        directory.write_config(_flat(config) | {"data_fingerprint": fingerprint(arrays)})
    except OSError as e:
        raise UserError(
            f"run directory {directory.path} cannot be written: {e.strerror or e}; choose another --out"
        ) from None
    return _finish(config, federation, federation.run(federation.start()))


def resume(path: Path, data_dir: str | None = None) -> dict[str, Any]:
    """Go on after the last round that was kept; gives the same numbers as if nothing had happened."""
    directory = RunDirectory(path)
    if not directory.config.exists():
        raise UserError(f"{path} is not a run directory: it has no config.yaml")
    given = read_yaml(directory.config)
    expected = given.pop("data_fingerprint", None)
    config = configure(given | {"out": str(path)} | ({"data_dir": data_dir} if data_dir else {}))
    arrays = load(config.data, folder_of(config))
    if expected not in (None, fingerprint(arrays)):
        raise UserError(f"the data of {path} has changed since the run began: the run cannot go on with other data")
    federation = build(config, arrays, directory)
    return _finish(config, federation, federation.run(federation.restore()))


def build(config: Config, arrays: Arrays, directory: RunDirectory) -> Federation:
    """Everything a run consists of; checks all that can be checked before the first round."""
    torch.set_num_threads(config.threads)
    set_arithmetic(config)
    method = make_method(config)
    task = make_task(config, method, arrays)
    plan = Plan(
        _known(config.rounds),
        min(config.per_round, len(task.clients)),
        config.eval_every,
        config.patience,
        config.select,
        config.checkpoint_every,
        config.eval_clients,
    )
    label = f"{method.name} on {Path(config.data).name}"
    return Federation(method, task, engine_of(config.engine, task.device, config.threads), plan, directory, label)


def set_arithmetic(config: Config) -> None:
    """What of it PyTorch keeps for the whole process."""
    if config.device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = config.precision == "tf32"
    elif config.precision == "bf16" and not (
        torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    ):
        print("this processor has no bfloat16 instructions: --precision fp32 would be faster", file=sys.stderr)


def make_method(config: Config) -> Method:
    return methods.find(config.method)(**config.options)


def make_task(config: Config, method: Method, arrays: Arrays) -> Task:
    device = device_of(config.device)
    _, rows = owners(config, arrays)
    splits = split(rows, config.seed)
    augment = bool(config.augment)
    if augment and (arrays.x.ndim != 4 or arrays.x.dtype.kind != "u"):
        raise UserError("augment needs images (N, C, H, W of bytes): this data has none; use --augment false")
    p_min = config.narrowest()
    model = make_model(_known(config.model), method, arrays.x.shape[1:], arrays.classes, p_min)
    # Channels last is the faster layout on a CPU; the reference engine keeps PyTorch's own. With few channels,
    # oneDNN's backward pass of a strided 1×1 convolution in it writes past its memory (uxlfoundation/oneDNN 6035).
    fast = device.type == "cpu" and config.engine != "sequential" and not model.strided_points
    layout = torch.channels_last if fast else torch.contiguous_format
    data = federate(arrays, config.data, splits, augment, device, layout)
    n = len(splits)
    r = capacities(config.setting, n, config.seed)
    if config.capacity_rule == "strict":
        widths = strict_widths(method, model, p_min, r)
    else:
        widths = method.widths([width_of(x, p_min) for x in r], p_min)
    for w in sorted(set(widths)):
        model.shapes(w)
    clients = [Client(i, r[i], widths[i], splits.trained(i)) for i in range(n)]
    local = LocalTraining(
        config.epochs, config.batch, _known(config.lr), config.lr_decay, config.weight_decay, config.clip_norm
    )
    dtype = torch.float64 if config.precision == "fp64" else torch.float32
    compute = torch.bfloat16 if config.precision == "bf16" else None
    return Task(model, data, clients, p_min, local, config.seed, device, dtype, compute)


def folder_of(config: Config) -> Path | None:
    return Path(config.data_dir).expanduser() if config.data_dir else None


def owners(config: Config, arrays: Arrays) -> tuple[str, list[np.ndarray]]:
    """The kind of partition, and the rows of each client."""
    kind = config.partition or ("iid" if arrays.client is None else "natural")
    n = config.clients
    if n is None:
        n = 100 if arrays.client is None or kind != "natural" else int(arrays.client.max()) + 1
    alpha, each = _known(config.dirichlet_alpha), _known(config.classes_per_client)
    return kind, partition(kind, arrays.y, arrays.client, n, config.seed, alpha, each)


def make_model(
    name: str, method: Method | type[Method], input_shape: tuple[int, ...], classes: int, p_min: Fraction
) -> Model:
    model = Model(factory_of(name), name, input_shape, classes, method.full_features)
    model.check(p_min)
    return model


def option_fields(cls: type[Method]) -> dict[str, dataclasses.Field[Any]]:
    """The hyper-parameters of a method."""
    return {f.name: f for f in dataclasses.fields(cls)}


def device_of(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise UserError(f"unknown device {name!r}: expected auto, cpu or cuda; CUDA_VISIBLE_DEVICES picks one GPU")
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device {name!r} is not available: no CUDA GPU was found; use --device cpu")
    return torch.device(name)


def fingerprint(arrays: Arrays) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for a in (arrays.x, arrays.y):
        digest.update(np.ascontiguousarray(a).data.cast("B"))
    return digest.hexdigest()


def _finish(config: Config, federation: Federation, state: State) -> dict[str, Any]:
    best = averages(state.best)
    summary = {
        "method": config.method,
        "data": config.data,
        "setting": config.setting,
        "model": config.model,
        "seed": config.seed,
        "rounds": state.round,
        "best_round": state.best_round,
        "test_accuracy": best["test_accuracy"],
        "val_accuracy": best["val_accuracy"],
        "worst_decile_accuracy": best["worst_decile_accuracy"],
        "stopped_early": state.stopped,
        "rejected_updates": state.rejected,
        "seconds": state.seconds,
        "device": _device_name(federation.task.device),
        "engine": federation.engine.name,
        "version": version(),
        "torch": torch.__version__,
        "config_hash": config.hash(),
        "path": str(federation.directory.path),
    }
    federation.directory.write_summary(summary)
    learning_curve([read_run(federation.directory.path)], federation.directory.path / "learning_curve.png")
    print(
        f"{federation.label}: {100 * best['test_accuracy']:.1f}% mean test accuracy at round {state.best_round} "
        f"of {state.round}, {duration(state.seconds)}, in {federation.directory.path}",
        file=sys.stderr,
    )
    return summary


def version() -> str:
    try:
        return metadata.version("pa3dfl")
    except metadata.PackageNotFoundError:  # run from a source tree
        return "source"


def _known(value: T | None) -> T:
    """A field that `configure` has filled."""
    assert value is not None
    return value


def _given(config: Config | None) -> dict[str, Any]:
    return {} if config is None else _flat(config)


def _flat(config: Config) -> dict[str, Any]:
    """Config and the method's options in one mapping, as in a YAML file."""
    values = dataclasses.asdict(config)
    options = values.pop("options")
    return {k: v for k, v in values.items() if v is not None} | options


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _slug(text: str) -> str:
    """Part of a file name: neither folders nor more letters than a file system takes."""
    name = Path(text).stem if text.endswith(".csv") else text
    return "".join(c if c.isalnum() else "-" for c in name)[:60]
