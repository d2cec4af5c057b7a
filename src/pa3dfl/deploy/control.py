"""Talking to a running server: letting nodes in, starting a training and following it to its end."""

import json
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pa3dfl.deploy.site import CONNECTION, Site, dial, program, site_config
from pa3dfl.disk import write_atomically
from pa3dfl.errors import UserError

LOOK_SECONDS = 0.5
# Flower's own tool takes a second or two to say how a run stands.
ASK_SECONDS = 10.0


def register(site: Site, patience: float = 60.0) -> Iterator[str]:
    """Make every key in `keys` known to the server; those that are known stay so."""
    wait_for_server(site, patience)
    for key in sorted(site.keys.glob("*.pub")):
        done = flwr(site, "supernode", "register", str(key), CONNECTION)
        said = " ".join((done.stdout + done.stderr).split())
        if done.returncode == 0:
            yield f"{key.stem} may come in"
        elif "already" not in said.lower():
            raise UserError(f"{key} was not accepted by the server: {said[-300:]}")


def train(site: Site, resume: bool, overwrite: bool, wanted: int, patience: float) -> None:
    config = site_config(site)
    if resume and not (site.run / "config.yaml").exists():
        raise UserError(f"there is no run in {site.folder} to go on with: leave --resume out")
    if not resume and not overwrite and site.run.exists() and any(site.run.iterdir()):
        raise UserError(f"{site.run} holds a run: go on with --resume, or say --overwrite")
    wait_for_server(site, 60.0)
    if not resume:
        shutil.rmtree(site.run, ignore_errors=True)
        site.seats.unlink(missing_ok=True)
    ticket = secrets.token_hex(8)
    site.log.write_text("")
    write_atomically(site.ticket, ticket.encode())
    options = f'folder="{site.folder.resolve()}" ticket="{ticket}" resume={str(resume).lower()} '
    options += f"wait-for={wanted} patience={patience}"
    done = flwr(site, "run", str(site.app), CONNECTION, "-c", options, "--format", "json")
    answer = _json(done.stdout)
    if done.returncode or not answer.get("success", True) or "run-id" not in answer:
        raise UserError(f"the training could not be started: {_line(done.stdout + done.stderr)}")
    follow(site, str(answer["run-id"]), ticket, config.rounds or 0)


def follow(site: Site, run: str, ticket: str, rounds: int) -> None:
    """Show the server's words and a line for each round, until it says how it ended or is no more."""
    log, records = Tail(site.log), Tail(site.run / "rounds.jsonl")
    asked = time.monotonic()
    if (site.run / "rounds.jsonl").exists():
        records.skip()
    while True:
        ended = outcome(site, ticket)
        for line in log.lines():
            print(line, flush=True)
        for line in records.lines():
            print(said(json.loads(line), rounds, names(site)), flush=True)
        if ended:
            break
        if time.monotonic() - asked > ASK_SECONDS:
            asked = time.monotonic()
            state = status(site, run)
            if state is None or state.startswith("finished"):
                time.sleep(1)
                if not outcome(site, ticket):
                    reason = "the server does not answer" if state is None else f"the server's program ended ({state})"
                    raise UserError(f"{reason}: `pa3dfl deploy train {site.folder} --resume` goes on once it is back")
        time.sleep(LOOK_SECONDS)
    if not ended["ok"]:
        raise UserError(ended["line"])
    print(ended["line"], flush=True)


def outcome(site: Site, ticket: str) -> dict[str, Any]:
    """How this training ended; empty while it runs."""
    found = _json(site.outcome.read_text()) if site.outcome.exists() else {}
    return found if found.get("ticket") == ticket else {}


def said(record: dict[str, Any], rounds: int, who: dict[int, str]) -> str:
    """A round in a line: who answered, who is missing, who was rejected and why."""
    words = [f"round {record['round']}/{rounds}: {len(record['participants'])} answered"]
    if record["missing"]:
        words.append("missing " + ", ".join(who.get(i, str(i)) for i in record["missing"]))
    words += [f"rejected {who.get(r['client'], r['client'])}: {r['reason']}" for r in record["rejected"]]
    words.append(f"loss {record['train_loss']:.3f}")
    if "test_accuracy" in record:
        words.append(f"accuracy {100 * record['test_accuracy']:.1f}%")
    if record.get("untested"):
        words.append("not tested " + ", ".join(who.get(i, str(i)) for i in record["untested"]))
    return ", ".join([*words, f"{record['seconds']:.0f} s"])


def names(site: Site) -> dict[int, str]:
    try:
        seats = json.loads(site.seats.read_text())["seats"]
    except (OSError, ValueError, KeyError):
        return {}
    return {i: s["name"] for i, s in enumerate(seats) if s}


def status(site: Site, run: str) -> str | None:
    """How Flower says that a run stands; None if the server is gone."""
    done = flwr(site, "list", CONNECTION, "--run-id", run, "--format", "json")
    found = _json(done.stdout).get("runs") or []
    return str(found[0].get("status")) if done.returncode == 0 and found else None


def flwr(site: Site, *words: str) -> subprocess.CompletedProcess[str]:
    command, environment = [program("flwr"), *words], site.environment()
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)


def wait_for_server(site: Site, patience: float) -> None:
    settings, deadline = site.settings(), time.monotonic() + patience
    host, port = dial(str(settings["host"])), int(settings["port"])
    while True:
        with socket.socket() as s:
            s.settimeout(1)
            if s.connect_ex((host, port)) == 0:
                return
        if time.monotonic() > deadline:
            raise UserError(f"no server at {host}:{port}: start it with `pa3dfl deploy server {site.folder}`")
        time.sleep(0.2)


class Tail:
    """Whole lines that were added to a file since the last look."""

    def __init__(self, path: Path) -> None:
        self.path, self.at = path, 0

    def skip(self) -> None:
        self.at = self.path.stat().st_size

    def lines(self) -> list[str]:
        if not self.path.exists():
            return []
        content = self.path.read_bytes()
        if len(content) < self.at:  # written anew
            self.at = 0
        end = content.rfind(b"\n") + 1
        new, self.at = content[self.at : end], max(end, self.at)
        return new.decode(errors="replace").splitlines()


def _json(text: str) -> dict[str, Any]:
    """The JSON object in an output that may have more around it."""
    try:
        found = json.loads(text[text.index("{") : text.rindex("}") + 1])
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _line(text: str) -> str:
    return " ".join(text.split())[-400:] or f"{Path(sys.executable).parent / 'flwr'} said nothing"
