"""Half an hour of a deployment to which everything happens: see `make test-deploy`.

PA3DFL_SOAK_MINUTES sets another length. The figures are printed, and written to soak.json in the test's folder.
"""

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pa3dfl[flower]'")

from live import Live, finish
from machines import OPTIONS

MINUTES = float(os.environ.get("PA3DFL_SOAK_MINUTES", "30"))
LIAR, SLOW, MORTAL = 6, 7, range(6)
KILL_SECONDS, SLOW_SECONDS, SAMPLE_SECONDS = 20.0, 6.0, 10.0

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(60 * MINUTES + 1200)]


def lasting(session: int, seconds: float = 60.0) -> list[int]:
    """The processes of a session that are older than a minute: not those that answer one message."""
    found, up = [], time.clock_gettime(time.CLOCK_BOOTTIME)
    for place in Path("/proc").glob("[0-9]*"):
        try:
            fields = (place / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        age = up - int(fields[19]) / os.sysconf("SC_CLK_TCK")
        if int(fields[3]) == session and age > seconds:
            found.append(int(place.name))
    return found


def megabytes(session: int) -> float:
    """What its processes have allocated. Files that are mapped, such as PyTorch's libraries, do not count: how much of
    them is said to be here depends on the other programs of the machine."""
    total = 0
    for pid in lasting(session):
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += int(next(line for line in text.splitlines() if line.startswith("Pss_Anon:")).split()[1])
    return total / 1024


def odd(live: Live, i: int, what: str, seconds: float) -> None:
    program = [sys.executable, str(Path(__file__).with_name("odd_node.py")), what, str(seconds)]
    words = ["deploy", "node", f"site/nodes/node-{i}", "--data", f"node-{i}.npz", "--capacity", live.capacities[i]]
    live.execute(f"node-{i}", [*program, *words])


def rounds(live: Live) -> list[dict[str, Any]]:
    path = live.deployment.run / "rounds.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="memory is read from Linux's /proc")
def test_a_long_training_survives_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Eight nodes: every 20 s one of six is killed and started again, one lies, one is slow."""
    (tmp_path / "tmp").mkdir()
    options = OPTIONS | {
        "method": "ditto", "per_round": 8, "rounds": 100_000, "timeout": 45.0, "eval_every": 10, "robust": "clip",
        "patience": 1e9,
    }  # fmt: skip
    dice, killed, memory = random.Random(0), 0, []
    with Live(tmp_path, ["1/16"] * 8, **options) as live:
        live.environment["TMPDIR"] = str(tmp_path / "tmp")
        live.server()
        for i in MORTAL:
            live.node(i)
        odd(live, LIAR, "liar", 0.0)
        odd(live, SLOW, "slow", SLOW_SECONDS)
        training = live.train("--overwrite")
        live.wait_for("8 of 8 nodes are connected")
        began = time.monotonic()
        kill_at, sample_at = began + KILL_SECONDS, began + SAMPLE_SECONDS
        while (now := time.monotonic()) < began + 60 * MINUTES:
            assert training.poll() is None, finish(training)
            if now >= kill_at:
                i = dice.choice(MORTAL)
                live.kill(f"node-{i}", signal.SIGKILL)
                live.node(i)
                killed, kill_at = killed + 1, kill_at + KILL_SECONDS
            if now >= sample_at:
                sessions = {name: live.running[name].pid for name in ("server", f"node-{LIAR}", f"node-{SLOW}")}
                memory.append((now - began, {name: megabytes(pid) for name, pid in sessions.items()}))
                sample_at += SAMPLE_SECONDS
            time.sleep(0.5)

        # The server is stopped in the middle of a round. The rest is one more round with all nodes.
        made = rounds(live)
        live.kill("server", signal.SIGTERM)
        code, out = finish(training)
        assert code != 0
        assert "--resume" in out
        live.configure(rounds=len(rounds(live)) + 1, timeout=120.0)
        live.server()
        code, out = finish(live.train("--resume"))
        assert code == 0, out
        last = rounds(live)[-1]
        assert len(last["participants"]) + len(last["rejected"]) == 8, last

    figures = {
        "minutes": MINUTES, "rounds": len(made), "killed": killed,
        "answers": sum(len(r["participants"]) for r in made), "missing": sum(len(r["missing"]) for r in made),
        "rejected": sum(len(r["rejected"]) for r in made),
        "reasons": Counter(r["reason"].split(":")[0][:40] for m in made for r in m["rejected"]),
        "bytes_down": sum(r["bytes_down"] for r in made), "bytes_up": sum(r["bytes_up"] for r in made),
        "memory": {name: window(memory, name) for name in memory[0][1]},
        "database": (live.deployment.path / "superlink.db").stat().st_size,
    }  # fmt: skip
    (tmp_path / "soak.json").write_text(json.dumps(figures | {"samples": memory}, indent=1))
    with capsys.disabled():
        print(f"\nsoak: {json.dumps(figures)}")

    assert {r["client"] for m in made for r in m["rejected"]} == {LIAR}
    assert sum(SLOW in m["participants"] for m in made) > 0.8 * len(made), "the slow node is shut out"
    assert figures["answers"] > 4 * len(made)
    for name, (early, late) in figures["memory"].items():
        assert late < 1.05 * early, f"{name}: {early:.0f} MB, then {late:.0f} MB"
    assert left_over(live, tmp_path) == []


def window(memory: list[tuple[float, dict[str, float]]], name: str) -> tuple[float, float]:
    """The median of the second third's first half (after the warm-up), and of the last sixth."""
    end = 60 * MINUTES
    early = [m[name] for t, m in memory if end / 3 <= t < end / 2]
    late = [m[name] for t, m in memory if t >= end * 5 / 6]
    return median(early), median(late)


def left_over(live: Live, folder: Path) -> list[str]:
    """Files that should have been removed: of other programs, half-written ones, too old private states."""
    found = [str(p.relative_to(folder)) for p in (folder / "tmp").rglob("*") if p.is_file()]
    for path in live.deployment.path.rglob("*"):
        if path.suffix in (".tmp", ".part") or path.name.startswith(".tmp"):
            found.append(str(path.relative_to(folder)))
    for i in range(8):
        kept = sorted((live.deployment.nodes / f"node-{i}" / "state").glob("*/private.*"))
        models = sorted((live.deployment.nodes / f"node-{i}" / "state").glob("*/models/*"))
        if len(kept) > 4 or len(models) > 4:
            found += [str(p.relative_to(folder)) for p in (*kept, *models)]
    return found
