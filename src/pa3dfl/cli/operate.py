"""The commands `pa3dfl deploy …` with which a deployment is watched and looked after."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pa3dfl.cli.flags import Parser
from pa3dfl.cli.printing import print_records

if TYPE_CHECKING:
    from pa3dfl.deploy.folder import DeploymentFolder


def add_folder(parser: Parser) -> None:
    parser.add_argument("dir", type=Path, metavar="DIR", help="deployment folder")


def deployment_in(folder: Path) -> "DeploymentFolder":
    from pa3dfl.deploy.folder import DeploymentFolder

    return DeploymentFolder(folder)


def status(argv: list[str]) -> None:
    parser = Parser("pa3dfl deploy status", description="Show nodes and training. Run this on the server's machine.")
    add_folder(parser)
    parser.add_argument("--json", action="store_true", help="print as JSON")
    args = parser.parse_exactly(argv)
    from pa3dfl.deploy.status import status as ask

    facts = ask(deployment_in(args.dir)).facts()
    if args.json:
        print(json.dumps(facts, indent=2))
        return
    print("\n".join(lines(facts)))
    if facts["nodes"]:
        print()
        print_records(facts["nodes"], tuple(facts["nodes"][0]), False)


def lines(facts: Mapping[str, Any]) -> list[str]:
    """A status for people, without its table of nodes."""
    from pa3dfl.core.progress import duration

    online = sum(n["state"] == "online" for n in facts["nodes"])
    found = [f"{facts['site']}: {facts['state']}, server at {facts['server']}"]
    if facts["state"] != "idle":
        left = facts["seconds_left"]
        ahead = "" if left is None else f", about {duration(left)} left"
        found.append(f"rounds: {facts['rounds_done']} of {facts['rounds']} done{ahead}")
    if facts["rounds_done"]:
        measured = "" if facts["accuracy"] is None else f", accuracy {100 * facts['accuracy']:.1f}%"
        found.append(f"latest: loss {facts['train_loss']:.3f}{measured}")
        down, up = facts["bytes_down"] / 1e6, facts["bytes_up"] / 1e6
        found.append(f"traffic: {down:.1f} MB to nodes, {up:.1f} MB back, {facts['rejected_updates']} updates rejected")
        found.append(f"time of a round: {duration(facts['seconds_per_round'])}")
    found.append(f"nodes: {online} of {len(facts['nodes'])} connected")
    if facts["missing"]:
        found.append("missing: " + ", ".join(facts["missing"]))
    if facts["line"]:
        found.append(f"ended: {facts['line']}")
    return found


STEPS: Mapping[str, Callable[[list[str]], None]] = {
    "status": status,
}
