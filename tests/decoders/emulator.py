"""Launches of `fused` on a CPU, by emulator.cpp: slow, and as the kernels are written."""

import ctypes
import shutil
import subprocess
from functools import cache
from pathlib import Path

from torch import Tensor

from pa3dfl.methods.common.decoders import Decoder, fused

COMPILER = shutil.which("g++")


def launch(folder: Path, name: str, decoders: list[Decoder], blocks: int, *args: Tensor | float) -> None:
    m, h = decoders[0].mix.shape
    run = getattr(_compiled(folder, h, fused._padded(m)), f"run_{name}")
    run(ctypes.c_uint(blocks), *[_c(arg) for arg in args])


def _c(arg: Tensor | float) -> object:
    if isinstance(arg, Tensor):
        return ctypes.c_void_p(arg.data_ptr())
    return ctypes.c_int(arg) if isinstance(arg, int) else ctypes.c_double(arg)


@cache
def _compiled(folder: Path, h: int, clients: int) -> ctypes.CDLL:
    assert COMPILER
    library = folder / f"kernels-{h}-{clients}.so"
    sources = {name.upper(): f'"{Path(fused.__file__).with_name(f"{name}.cu")}"' for name in ("tiles", "kernels")}
    given = sources | fused.given(h, clients)
    options = [
        "-std=c++17",
        "-O1",
        "-shared",
        "-fPIC",
        "-Wno-unknown-pragmas",
        *[f"-D{k}={v}" for k, v in given.items()],
    ]
    subprocess.run([COMPILER, *options, str(Path(__file__).with_name("emulator.cpp")), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))
