"""Builds a run's method, model and task from its config. Every process builds the same from the same config."""

import dataclasses
import hashlib
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from pa3dfl import methods
from pa3dfl.core.errors import UserError
from pa3dfl.core.logging import log
from pa3dfl.core.options.capacity import capacities, width_of
from pa3dfl.core.options.config import Config, resolve
from pa3dfl.core.options.names import DATA
from pa3dfl.core.options.newcomers import newcomers
from pa3dfl.data import Arrays, Columns, Splits, federate, load, partition
from pa3dfl.methods import Method
from pa3dfl.methods.problem import Client, LocalTraining, Task
from pa3dfl.methods.sizes import strict_widths
from pa3dfl.models import Model, factory_of

T = TypeVar("T")


def configure(given: Mapping[str, Any]) -> Config:
    """The complete config: given values are checked, all others are filled in."""
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


def make_method(config: Config) -> Method:
    return methods.find(config.method)(**config.options)


def make_task(config: Config, method: Method, arrays: Arrays) -> Task:
    device = device_of(config.device)
    kind, rows = owners(config, arrays)
    splits = Splits(rows, config.seed, arrays.part if kind == "natural" else None)
    augment = bool(config.augment)
    if augment and (arrays.x.ndim != 4 or arrays.x.dtype.kind != "u"):
        raise UserError("augment needs images (N, C, H, W of bytes): this data has none; use --augment false")
    p_min = config.narrowest()
    try:
        model = make_model(known(config.model), method, arrays.x.shape[1:], arrays.classes, p_min, config.init)
    except UserError as e:
        own = config.data in DATA or config.model == suited(arrays)
        raise UserError(f"{e}{'' if own else f'; for this data try --model {suited(arrays)}'}") from e
    _refuse_unknown_tokens(model, arrays)
    n = len(splits)
    late = newcomers(config.newcomers, n, config.seed)
    data = federate(arrays, config.data, splits, augment, device, layout_of(config, device), late)
    r = capacities(config.setting, n, config.seed)
    if config.capacity_rule == "strict":
        widths = strict_widths(method, model, p_min, r)
    else:
        widths = method.widths([width_of(x, p_min) for x in r], p_min)
    for w in sorted(set(widths)):
        model.shapes(w)
    names = arrays.names if kind == "natural" else ()
    known_by_name = any(name != str(i) for i, name in enumerate(names))
    clients = [Client(i, r[i], widths[i], splits.trained(i), names[i] if known_by_name else "") for i in range(n)]
    dtype, compute = dtypes_of(config)
    return Task(model, p_min, config.seed, device, data, clients, rules(config), late, dtype=dtype, compute=compute)


def _refuse_unknown_tokens(model: Model, arrays: Arrays) -> None:
    """On a GPU, a token beyond the rows of an embedding would end the process."""
    rows = max((model.full_shapes[f"{table}.weight"][0] for table in model.tables), default=0)
    if model.whole_numbers and arrays.x.dtype.kind in "iu" and not 0 <= arrays.x.min() <= arrays.x.max() < rows:
        raise UserError(
            f"the data has tokens from {arrays.x.min()} to {arrays.x.max()}, and model {model.name!r} knows 0 to "
            f"{rows - 1}: renumber them, or give a model with a larger embedding"
        )


def suited(arrays: Arrays) -> str:
    """The name of a built-in network that suits the data."""
    if arrays.x.ndim == 2:
        return "mlp-tabular" if arrays.x.dtype.kind == "f" else "lstm-text"
    return "cnn-sensor" if arrays.x.ndim == 3 else "cnn-fashion"


def layout_of(config: Config, device: torch.device) -> torch.memory_format:
    """Channels last is faster on a CPU. The reference engine and Flower's nodes keep PyTorch's default layout."""
    fast = device.type == "cpu" and config.engine in ("auto", "threaded")
    return torch.channels_last if fast else torch.contiguous_format


def set_arithmetic(config: Config) -> None:
    """Set the precision that PyTorch keeps for the whole process."""
    if config.device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = config.precision == "tf32"
    elif config.precision == "bf16" and not (
        torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    ):
        log.warning("this processor has no bfloat16 instructions: --precision fp32 would be faster")


def rules(config: Config) -> LocalTraining:
    return LocalTraining(
        config.epochs, config.batch, known(config.lr), config.lr_decay, config.weight_decay, config.clip_norm
    )


def dtypes_of(config: Config) -> tuple[torch.dtype, torch.dtype | None]:
    """The type of weights, and the type of products if it is narrower."""
    weights = torch.float64 if config.precision == "fp64" else torch.float32
    return weights, torch.bfloat16 if config.precision == "bf16" else None


def folder_of(config: Config) -> Path | None:
    return Path(config.data_dir).expanduser() if config.data_dir else None


def arrays_of(config: Config) -> Arrays:
    """The data of a run."""
    columns = Columns(config.client_column, config.label_column, config.input_columns)
    return load(config.data, folder_of(config), columns=columns, small=config.small_clients)


def owners(config: Config, arrays: Arrays) -> tuple[str, list[np.ndarray]]:
    """The kind of partition, and the rows of each client."""
    kind = config.partition or ("iid" if arrays.client is None else "natural")
    n = config.clients
    if n is None:
        n = 100 if arrays.client is None or kind != "natural" else int(arrays.client.max()) + 1
    alpha, each = known(config.dirichlet_alpha), known(config.classes_per_client)
    return kind, partition(kind, arrays.y, arrays.client, n, config.seed, alpha, each)


def make_model(
    name: str,
    method: Method | type[Method],
    input_shape: tuple[int, ...],
    classes: int,
    p_min: Fraction,
    init: str = "he",
) -> Model:
    model = Model(factory_of(name), name, input_shape, classes, method.full_features, init)
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


def flat(config: Config) -> dict[str, Any]:
    """Config and the method's options in one mapping, as in a YAML file."""
    values = dataclasses.asdict(config)
    options = values.pop("options")
    given = {k: v for k, v in values.items() if v is not None}
    return {**given, **options}


def _slug(text: str) -> str:
    """The text as part of a file name: without folders, and short enough for a file system."""
    name = Path(text).stem if text.endswith(".csv") else text
    return "".join(c if c.isalnum() else "-" for c in name)[:60]


def known(value: T | None) -> T:
    """The value of a field that `configure` has filled."""
    assert value is not None
    return value
