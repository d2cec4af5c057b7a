"""What a message costs in a deployment beside its training: `python -m benchmarks.messages [--nodes 3,8]`.

A real server and real nodes with TLS on this machine train FedAvg on 60 images each. A round is one message to each
node and its answer. Processor time of a node is that of all its processes, between the first and the last round. The
same rounds in one process, without messages, say what of it is training; the time after the last round says what it
costs to look for messages when there are none. Flower's SuperNode sleeps 3 s when there is no message, and looks for
the answer every 0.5 s: what a round takes above 3.5 s and its training is ours.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.arguments import count
from benchmarks.tables import median, save, show
from pa3dfl.data import load
from pa3dfl.deploy.node_launcher import free_port
from pa3dfl.experiments import api

SLEEPS = 3.5
"""Flower's own, at most: SuperNode's wait for a message (3 s) and for its answer (0.5 s)."""
ROWS, IDLE_SECONDS = 60, 20.0
OPTIONS = {"method": "fedavg", "model": "cnn-fashion", "epochs": 1, "batch": 20, "threads": 1}
TICKS = os.sysconf("SC_CLK_TCK")
SINGLE = os.environ | {"OMP_NUM_THREADS": "1"}


def measure(nodes: int, rounds: int, capacity: str) -> dict[str, Any]:
    with TemporaryDirectory() as name, deployment(Path(name), nodes, rounds, capacity) as (folder, server, devices):
        run = folder / "site" / "run"
        words = pa3dfl("deploy", "train", "site")
        training = subprocess.Popen(words, cwd=folder, env=SINGLE, stdout=subprocess.DEVNULL)
        log = folder / "server.log"
        here = wait(lambda: log.read_text().count("Activated node_id=") >= nodes)
        first = wait(lambda: len(records(run)) >= 1) - records(run)[0]["seconds"]
        at, node_cpu, server_cpu = time.monotonic(), processor(devices), processor([server])
        begun = len(records(run))
        end = wait(lambda: len(records(run)) >= rounds - 1)  # the last round has a test as well
        node_cpu, server_cpu = processor(devices) - node_cpu, processor([server]) - server_cpu
        messages = (len(records(run)) - begun) * nodes
        seconds = median([r["seconds"] for r in records(run)[begun : rounds - 1]])
        assert training.wait(600) == 0
        time.sleep(2)
        idle = processor(devices)
        time.sleep(IDLE_SECONDS)
        idle = (processor(devices) - idle) / nodes / IDLE_SECONDS
        trained = alone(folder, nodes, rounds, capacity)
        looked = idle * (end - at) * nodes / messages
        return {
            "nodes": nodes,
            "a message, kB": records(run)[0]["bytes_down"] / nodes / 1000,
            "a node's processor a message, s": node_cpu / messages,
            "training, s": trained,
            "looking for messages, s": looked,
            "overhead, s": node_cpu / messages - trained - looked,
            "server's processor a message, s": server_cpu / messages,
            "a round, s": seconds,
            "above sleeps and training, s": seconds - SLEEPS - trained * nodes / cores(),
            "idle node, processor": idle,
            "idle node, MB": median([memory(d) for d in devices]),
            "first round after last node, s": first - here,
            "load of the machine": os.getloadavg()[0],
        }


@contextmanager
def deployment(folder: Path, nodes: int, rounds: int, capacity: str) -> Iterator[tuple[Path, int, list[int]]]:
    """The server's process and those of the nodes."""
    data, owner = load("fashion-mnist-10k"), np.arange(ROWS * nodes) % nodes
    x, y = data.x[: len(owner)], data.y[: len(owner)]
    np.savez(folder / "all.npz", x=x, y=y, client=owner)
    for i in range(nodes):
        np.savez(folder / f"{i}.npz", x=x[owner == i], y=y[owner == i])
    flags = OPTIONS | {"nodes": nodes, "port": free_port(), "per-round": nodes, "rounds": rounds, "eval-every": rounds}
    words = [w for k, v in flags.items() for w in (f"--{k}", str(v))]
    subprocess.run(pa3dfl("deploy", "init", "site", *words), cwd=folder, check=True, stdout=subprocess.DEVNULL)
    started = []
    try:
        started.append(start(folder, "server", "deploy", "server", "site"))
        for i in range(nodes):
            words = ("deploy", "node", f"site/nodes/node-{i}", "--data", f"{i}.npz", "--capacity", capacity)
            started.append(start(folder, f"node-{i}", *words))
        yield folder, started[0].pid, [p.pid for p in started[1:]]
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGTERM)
        for process in started:
            process.wait(30)


def start(folder: Path, name: str, *words: str) -> subprocess.Popen[bytes]:
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(pa3dfl(*words), cwd=folder, env=SINGLE, stdout=log, stderr=log, start_new_session=True)


def pa3dfl(*words: str) -> list[str]:
    return [sys.executable, "-m", "pa3dfl.cli", *words]


def alone(folder: Path, nodes: int, rounds: int, capacity: str) -> float:
    """Processor seconds for a client's training in one process, without messages."""
    options = OPTIONS | {
        "data": str(folder / "all.npz"),
        "per_round": nodes,
        "setting": f"list:{','.join([capacity] * nodes)}",
        "device": "cpu",
    }

    def run(rounds: int) -> float:
        begun = time.process_time()
        api.run(**options, engine="sequential", rounds=rounds, eval_every=rounds, out=str(folder / f"run-{rounds}"))
        return time.process_time() - begun

    run(1)  # what is done once in a process
    return (run(2 + rounds) - run(2)) / rounds / nodes


def wait(there: Callable[[], bool], seconds: float = 600.0) -> float:
    """The time when it was there."""
    deadline = time.monotonic() + seconds
    while not there():
        if time.monotonic() > deadline:
            raise SystemExit("the deployment does not get on: is the machine busy?")
        time.sleep(0.05)
    return time.monotonic()


def records(run: Path) -> list[dict[str, Any]]:
    file = run / "rounds.jsonl"
    if not file.exists():
        return []
    *complete, _ = file.read_text().split("\n")
    return [json.loads(line) for line in complete]


def family(pid: int) -> list[int]:
    """A process and its descendants."""
    found = [pid]
    for one in found:
        with suppress(OSError):
            found += [int(child) for child in Path(f"/proc/{one}/task/{one}/children").read_text().split()]
    return found


def processor(pids: list[int]) -> float:
    """Processor seconds of these families, with those of children that have ended."""
    total = 0
    for pid in (p for head in pids for p in family(head)):
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15]))
    return total / TICKS


def memory(pid: int) -> float:
    """Megabytes of a family; pages that several processes share count in parts."""
    total = 0
    for one in family(pid):
        with suppress(OSError):
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1000


def cores() -> int:
    return len(os.sched_getaffinity(0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="3,8", help="numbers of nodes, separated by commas [3,8]")
    parser.add_argument("--rounds", type=count, default=12, help="rounds of each deployment [12]")
    parser.add_argument("--capacity", default="1/64", help="of each node: the size of a message [1/64]")
    parser.add_argument("--out", type=Path, default=Path("runs/messages.json"), help="results as JSON")
    args = parser.parse_args()
    if args.rounds < 4:
        parser.error("the first and the last round do not count: ask for 4 rounds or more")
    rows = [measure(count(n), args.rounds, args.capacity) for n in args.nodes.split(",")]
    show("Messages", [{"": k} | {f"{r['nodes']} nodes": r[k] for r in rows} for k in rows[0] if k != "nodes"])
    save(args.out, "messages", {"rounds": args.rounds, "capacity": args.capacity, "cores": cores()}, rows)


if __name__ == "__main__":
    main()
