"""All contestants train the same rounds, each in its own process: this library, plain loops, other simulators.

Contestants take turns several times, and medians are compared, because other programs disturb single measurements.
"""

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.memory import Watch
from benchmarks.tables import median
from benchmarks.workload import Work

ROOT = Path(__file__).parent.parent
LIMIT = "limit"
PEERS = ("flgo", "pfl", "flwr", "fedjax")
TRIES = 2  # turns that may fail before it is left out of the others: some failures pass
Result = dict[str, Any]


@dataclass(frozen=True)
class Contest:
    own: Mapping[str, Sequence[str]]  # by name, a module of this folder and its arguments beside the work
    peers: Path  # an environment that has them, or a folder of packages
    patience: int = 900  # seconds that one run may take

    def hold(self, names: Sequence[str], works: Sequence[Work], repeats: int) -> list[dict[str, list[Result]]]:
        """For each work, what each of them did in its turns."""
        results: list[dict[str, list[Result]]] = [{name: [] for name in names} for _ in works]
        for turn in range(repeats):
            for work, rows in zip(works, results, strict=True):
                for name, before in rows.items():
                    if sum("error" in r for r in before) == TRIES:
                        continue
                    before.append(self.play(name, work))
                    said = before[-1].get("error") or f"{before[-1]['samples_per_second']:,.0f} samples/s"
                    print(f"{turn + 1}/{repeats}  width {work.width:g}  {name}: {said}", file=sys.stderr, flush=True)
        return results

    def play(self, name: str, work: Work) -> Result:
        """One contestant's run: what it printed last, and the most memory that it held."""
        python, paths = sys.executable, [str(ROOT / "src"), str(ROOT)]
        if name not in self.own:
            peers = self.peers.absolute()  # it runs in another folder
            if not peers.exists():
                return {"error": f"no environment at {peers}: `make bench` makes it"}
            environment = peers / "bin" / "python"
            if environment.exists():
                python = str(environment)
            else:
                paths.append(str(peers))
        module, *more = self.own.get(name, (f"peers.{name}",))
        command = [python, "-m", f"benchmarks.{module}", json.dumps(dataclasses.asdict(work)), *more]
        # A peer is given the cores in the way that suits it, by its own file.
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
            env=os.environ | hidden(work) | {"PYTHONPATH": ":".join(paths)}, start_new_session=True,
        )  # fmt: skip
        watch = Watch(process)
        try:
            out, err = process.communicate(timeout=self.patience)
        except subprocess.TimeoutExpired:
            return {"error": f"not done after {self.patience} s"}
        finally:
            peak = watch.stop()
            end(process)
        lines = [line for line in out.splitlines() if line.startswith('{"samples_per_second"')]
        if process.returncode or not lines:
            return {"error": reason(err)}
        return json.loads(lines[-1]) | {"peak_mb": peak}


def failures(results: Sequence[Result]) -> str:
    errors = [r["error"] for r in results if "error" in r]
    return f"{len(errors)} of {len(results)}: {errors[-1]}" if errors else ""


def hidden(work: Work) -> dict[str, str]:
    """What to tell the environment so that nobody takes the GPU beside a contest of processors."""
    return {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"} if work.device == "cpu" else {}


def end(process: subprocess.Popen[str]) -> None:
    """And all that it started: what outlives its turn would slow the next one's."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def reason(said: str) -> str:
    """The last line of tracebacks that names an error and says something of it, or else the last line."""
    lines = said.strip().splitlines() or ["it said nothing"]
    named = [line for line in lines if re.match(r"(\[rank\d+\]: )?[\w.]*(Error|Exception): \S", line)]
    return (named or lines)[-1][:200]


def summary(results: Mapping[str, Sequence[Result]]) -> list[dict[str, Any]]:
    """Medians, and their ratios to the best peer's and the limit."""
    speeds = {name: median([r["samples_per_second"] for r in rs if "error" not in r]) for name, rs in results.items()}
    rivals = [speeds[p] for p in PEERS if speeds.get(p, 0) > 0]
    best, limit = max(rivals, default=float("nan")), speeds.get(LIMIT, float("nan"))
    return [
        {
            "who": name,
            "samples/s": speeds[name],
            "of the best peer": speeds[name] / best,
            "of the limit": speeds[name] / limit,
            "peak MB": max((r["peak_mb"] for r in rs if "error" not in r), default=float("nan")),
            "turns that failed": failures(rs),
        }
        for name, rs in results.items()
    ]
