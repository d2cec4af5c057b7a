"""The work that all contestants do, and their reports. Needs only torch; this project need not be installed.

FedAvg rounds of the paper's Fashion CNN on random images: shapes and sizes decide the speed, values do not.
"""

import importlib.util
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

SOURCE = Path(__file__).parent.parent / "src" / "pa3dfl" / "models" / "cnn.py"


@dataclass(frozen=True)
class Work:
    width: float = 0.25
    clients: int = 20
    rows: int = 320
    epochs: int = 5
    batch: int = 50
    rounds: int = 1
    threads: int = 2
    lr: float = 0.05
    device: str = "cpu"

    @property
    def samples(self) -> int:
        """Trained in the timed rounds."""
        return self.clients * self.rows * self.epochs * self.rounds


def asked() -> Work:
    """The work from the command line, as JSON."""
    return Work(**json.loads(sys.argv[1])) if len(sys.argv) > 1 else Work()


def network(width: float) -> nn.Module:
    """The network, loaded from its file, because this project is not installed in a peer's environment."""
    spec = importlib.util.spec_from_file_location("cnn", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.cnn_fashion(width)


def images(work: Work) -> tuple[Tensor, Tensor]:
    """(clients, rows, 1, 28, 28) and (clients, rows)."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(work.clients, work.rows, 1, 28, 28, generator=g)
    return x, torch.randint(0, 10, (work.clients, work.rows), generator=g)


def report(work: Work, seconds: float) -> None:
    print(json.dumps({"samples_per_second": work.samples / seconds}), flush=True)


def timed(work: Work, play_round: Callable[[int], object]) -> None:
    """One round to warm up, then the timed ones."""
    play_round(1)
    wait(work)
    started = time.perf_counter()
    for rnd in range(2, work.rounds + 2):
        play_round(rnd)
    wait(work)
    report(work, time.perf_counter() - started)


def wait(work: Work) -> None:
    """Wait for a GPU, which works asynchronously."""
    if work.device == "cuda":
        torch.cuda.synchronize()
