"""Starts a training on a running server and follows it until it ends."""

import json
import secrets
import shutil
import time
from pathlib import Path
from typing import Any

from pa3dfl.core.errors import UserError
from pa3dfl.core.files import write_atomically
from pa3dfl.deploy.control_client import ControlClient, server_answers, wait_for_server
from pa3dfl.deploy.folder import DeploymentFolder, deployment_config
from pa3dfl.deploy.status import client_names

LOOK_SECONDS = 0.5
ASK_SECONDS = 5.0


def train(
    deployment: DeploymentFolder, resume: bool, overwrite: bool, join: bool, wanted: int, patience: float
) -> None:
    config = deployment_config(deployment)
    if resume + overwrite + join > 1:
        raise UserError("choose one of --resume, --overwrite and --join")
    if join and not (deployment.run / "summary.json").exists():
        raise UserError(f"there is no finished run in {deployment.path} to join: train first")
    if resume and not (deployment.run / "config.yaml").exists():
        raise UserError(f"there is no run in {deployment.path} to resume: omit --resume")
    new = not resume and not join
    if new and not overwrite and deployment.run.exists() and any(deployment.run.iterdir()):
        raise UserError(f"{deployment.run} holds a run: use --resume or --overwrite")
    control = ControlClient(deployment)
    wait_for_server(deployment, 60.0)
    if new and deployment.is_training():
        raise UserError(f"another training is running in {deployment.path}: wait for it or stop it")
    deployment.outcome.unlink(missing_ok=True)
    if new:
        shutil.rmtree(deployment.run, ignore_errors=True)
        deployment.registrations.unlink(missing_ok=True)
    ticket = secrets.token_hex(8)
    deployment.log.write_text("")
    write_atomically(deployment.ticket, ticket.encode())
    said = {"ticket": ticket, "resume": resume, "join": join, "wait-for": wanted, "patience": patience}
    run = control.start(said)
    follow(deployment, control, run, ticket, config.rounds or 0)


def follow(deployment: DeploymentFolder, control: ControlClient, run: int, ticket: str, rounds: int) -> None:
    """Print the server's log and a line for each round until the training ends or the server exits."""
    log, records = Tail(deployment.log), Tail(deployment.run / "rounds.jsonl")
    asked = time.monotonic()
    if (deployment.run / "rounds.jsonl").exists():
        records.skip()
    while True:
        ended = outcome(deployment, ticket)
        for line in log.lines():
            print(line, flush=True)
        for line in records.lines():
            print(said(json.loads(line), rounds, client_names(deployment)), flush=True)
        if ended:
            break
        if time.monotonic() - asked > ASK_SECONDS:
            asked = time.monotonic()
            state = control.status(run)
            # A server that is there but slow to answer has not ended.
            gone = state is None and not server_answers(deployment)
            if gone or (state or "").startswith("finished"):
                time.sleep(1)
                if not outcome(deployment, ticket):
                    reason = "the server does not answer" if gone else f"the server's program ended ({state})"
                    raise UserError(
                        f"{reason}: `pa3dfl deploy train {deployment.path} --resume` continues once it is back"
                    )
        time.sleep(LOOK_SECONDS)
    if not ended["ok"]:
        raise UserError(ended["line"])
    print(ended["line"], flush=True)


def outcome(deployment: DeploymentFolder, ticket: str) -> dict[str, Any]:
    """The outcome of this training; empty while it runs."""
    found = _json(deployment.outcome.read_text()) if deployment.outcome.exists() else {}
    return found if found.get("ticket") == ticket else {}


def said(record: dict[str, Any], rounds: int, who: dict[int, str]) -> str:
    """Summarise a round: how many clients answered, which are missing, which were rejected and why."""
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


class Tail:
    """Reads the complete lines that were appended to a file since the last call."""

    def __init__(self, path: Path) -> None:
        self.path, self.at = path, 0

    def skip(self) -> None:
        self.at = self.path.stat().st_size

    def lines(self) -> list[str]:
        if not self.path.exists():
            return []
        content = self.path.read_bytes()
        if len(content) < self.at:  # the file was replaced
            self.at = 0
        end = content.rfind(b"\n") + 1
        new, self.at = content[self.at : end], max(end, self.at)
        return new.decode(errors="replace").splitlines()


def _json(text: str) -> dict[str, Any]:
    """Parse the JSON object in a text that may contain more; empty if there is none."""
    try:
        found = json.loads(text[text.index("{") : text.rindex("}") + 1])
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
