"""Talking to a running server: letting nodes in, starting a training and following it to its end."""

import json
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pa3dfl.core.errors import UserError
from pa3dfl.core.files import write_atomically
from pa3dfl.deploy.client import Control, public_key
from pa3dfl.deploy.site import Site, dial, site_config

LOOK_SECONDS = 0.5
ASK_SECONDS = 5.0


def register(site: Site, patience: float = 60.0) -> Iterator[str]:
    """Exactly the nodes whose key is in `keys` may come in: others are let in now, or turned out."""
    control = Control(site)
    wait_for_server(site, patience)
    wanted = {}
    for file in sorted(site.keys.glob("*.pub")):
        try:
            wanted[public_key(file.read_bytes())] = file.stem
        except UserError as e:
            raise UserError(f"{file}: {e}") from None
    known, gone = control.nodes()
    for key in sorted(wanted.keys() - known.keys(), key=wanted.__getitem__):
        if key in gone:
            yield f"{wanted[key]} stays out: its key was turned out before, and Flower takes no key twice"
            continue
        control.register(key)
        yield f"{wanted[key]} may come in"
    for key in known.keys() - wanted.keys():
        control.unregister(known[key])
        yield f"node {known[key]} may not come in any more: its key is not in {site.keys}"


def train(site: Site, resume: bool, overwrite: bool, wanted: int, patience: float) -> None:
    config = site_config(site)
    if resume and not (site.run / "config.yaml").exists():
        raise UserError(f"there is no run in {site.folder} to go on with: leave --resume out")
    if not resume and not overwrite and site.run.exists() and any(site.run.iterdir()):
        raise UserError(f"{site.run} holds a run: go on with --resume, or say --overwrite")
    control = Control(site)
    wait_for_server(site, 60.0)
    if not resume:
        shutil.rmtree(site.run, ignore_errors=True)
        site.seats.unlink(missing_ok=True)
    ticket = secrets.token_hex(8)
    site.log.write_text("")
    write_atomically(site.ticket, ticket.encode())
    run = control.start({"ticket": ticket, "resume": resume, "wait-for": wanted, "patience": patience})
    follow(site, control, run, ticket, config.rounds or 0)


def follow(site: Site, control: Control, run: int, ticket: str, rounds: int) -> None:
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
            state = control.status(run)
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
