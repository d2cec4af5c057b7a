"""A network in a file that others can open: its weights, an ONNX graph, or a program of `torch.export`.

A graph and a program take any number of rows. They need neither this package nor the class of the network.
"""

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from pa3dfl.core import files
from pa3dfl.core.errors import UserError
from pa3dfl.core.words import counted

FILES: Mapping[str, str] = {"safetensors": "model.safetensors", "onnx": "model.onnx", "torch": "model.pt2"}
"""By format, the name of the file."""
INPUT, OUTPUT = "x", "logits"
TOLERANCE = 1e-5
"""How far a graph's or a program's logits may be from the network's, relative to the largest if that is above 1."""
SIZES = (1, 2, 7)
"""Numbers of rows at which they are compared."""

FIXED = "specialized it to be a constant"
ROWS = "its forward works for one number of rows only: take it from x.shape[0], and do not loop over rows"

Predict = Callable[[Tensor], Tensor]


def write(path: Path, form: str, network: nn.Module, rows: Tensor) -> None:
    """Write a network, and compare what the file gives for some of these rows with what the network gives."""
    if form == "safetensors":
        files.write_tensors(path, {k: v.clone() for k, v in network.state_dict().items()}, durable=True)
        return
    with _quiet(), torch.no_grad():
        try:
            program = _program(network, rows[:2])
            if form == "torch":
                torch.export.save(program, path)
            else:
                path.write_bytes(_graph(program))
        except UserError:
            raise
        except Exception as e:  # an exporter may raise anything for a network with unsupported operations
            said = " ".join(str(e).split())
            reason = ROWS if FIXED in said else f"{type(e).__name__}: {said[:200]}"
            raise UserError(f"this network cannot be written as {form}: {reason}; use --format safetensors") from None
    compare(path, form, network, rows)


def _program(network: nn.Module, rows: Tensor) -> Any:
    """A program for any number of rows. The reader of bytecode, which is slower, knows that `len(x)` may vary."""
    sizes = ({0: torch.export.Dim("rows", min=1)},)
    try:
        return torch.export.export(network, (rows,), dynamic_shapes=sizes, strict=False)
    except Exception:
        try:
            return torch.export.export(network, (rows,), dynamic_shapes=sizes, strict=True)
        except Exception:
            pass  # the first one says what a user can change
        raise


def compare(path: Path, form: str, network: nn.Module, rows: Tensor) -> None:
    """Refuse a file whose logits are not the network's, at several numbers of rows."""
    predict = read(path, form)
    for n in SIZES:
        some = rows[torch.arange(n) % len(rows)]
        with torch.no_grad():
            expected, found = network(some), predict(some)
        far = float((found - expected).abs().max() / expected.abs().max().clamp(min=1))
        if not far <= TOLERANCE:
            tried = counted(n, "row")
            raise UserError(f"{path} differs from the network by {far:.1g} for {tried}: use another --format")


def read(path: Path, form: str, network: Callable[[], nn.Module] | None = None) -> Predict:
    """The function from a batch to logits; `network` makes the network that weights belong to."""
    try:
        if form == "onnx":
            return _session(path)
        if form == "torch":
            with _quiet():
                return torch.export.load(path).module()
        assert network is not None
        module = network()
        module.load_state_dict(load_file(path))
        return module
    except UserError:
        raise
    except Exception as e:  # three libraries read these files, each with its own errors
        raise UserError(f"{path} cannot be read: {type(e).__name__}: {' '.join(str(e).split())[:200]}") from None


def _graph(program: Any) -> bytes:
    try:
        import onnxscript  # noqa: F401  (an extra)
    except ImportError as e:
        raise _needs(e) from None
    made = torch.onnx.export(program, dynamo=True, verbose=False, input_names=[INPUT], output_names=[OUTPUT])
    assert made is not None
    graph: bytes = made.model_proto.SerializeToString()
    return graph


def _session(path: Path) -> Predict:
    try:
        import onnxruntime
    except ImportError as e:
        raise _needs(e) from None
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    [name] = [i.name for i in session.get_inputs()]

    def predict(x: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {name: x.numpy()})[0])

    return predict


def _needs(e: ImportError) -> UserError:
    return UserError(f"ONNX needs packages that are not installed ({e}): pip install 'pa3dfl[onnx]'")


@contextmanager
def _quiet() -> Iterator[None]:
    """Hides what the exporters print and warn of, and switches off fused attention, which they do not support."""
    fast, level = torch.backends.mha.get_fastpath_enabled(), logging.root.manager.disable
    torch.backends.mha.set_fastpath_enabled(False)
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        logging.disable(level)
