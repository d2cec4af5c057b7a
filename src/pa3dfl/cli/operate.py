"""The commands `pa3dfl deploy …` that watch and maintain a deployment."""

import json
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pa3dfl.cli.flags import Parser
from pa3dfl.cli.printing import print_records
from pa3dfl.core.errors import UserError

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
    """A status as text, without its table of nodes."""
    from pa3dfl.core.progress import duration
    from pa3dfl.core.words import counted

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
        refused = counted(facts["rejected_updates"], "update")
        found.append(f"traffic: {down:.1f} MB to nodes, {up:.1f} MB back, {refused} rejected")
        found.append(f"time of a round: {duration(facts['seconds_per_round'])}")
    found.append(f"nodes: {online} of {len(facts['nodes'])} connected")
    if facts["missing"]:
        found.append("missing: " + ", ".join(facts["missing"]))
    if facts["line"]:
        found.append(f"ended: {facts['line']}")
    return found


def register(argv: list[str]) -> None:
    parser = Parser(
        "pa3dfl deploy register",
        description="Register the nodes whose public key is in DIR/keys; unregister all others.",
    )
    add_folder(parser)
    deployment = deployment_in(parser.parse_exactly(argv).dir)
    if deployment.settings()["insecure"]:
        raise UserError(f"{deployment.path} was made with --insecure: its nodes have no keys")
    from pa3dfl.deploy.membership import register as let_in

    say(let_in(deployment))


def revoke(argv: list[str]) -> None:
    parser = Parser("pa3dfl deploy revoke", description="Shut a node out: delete its public key and unregister it.")
    args = _parse_node(parser, argv)
    from pa3dfl.deploy.membership import revoke as shut_out

    say(shut_out(deployment_in(args.dir), args.node))


def rotate_key(argv: list[str]) -> None:
    parser = Parser("pa3dfl deploy rotate-key", description="Give a node a new key; the old one is no longer accepted.")
    args = _parse_node(parser, argv)
    from pa3dfl.deploy.membership import rotate

    say(rotate(deployment_in(args.dir), args.node))


def _parse_node(parser: Parser, argv: list[str]) -> Namespace:
    add_folder(parser)
    parser.add_argument("node", metavar="NODE", help="name of the node, such as node-1")
    return parser.parse_exactly(argv)


def say(lines: Iterable[str]) -> None:
    """Print each line when it is known. The server runs `register` too: the prefix tells its lines from Flower's."""
    for line in lines:
        print(f"pa3dfl: {line}", flush=True)


def backup(argv: list[str]) -> None:
    parser = Parser("pa3dfl deploy backup", description="Copy a deployment folder to a file, also while it trains.")
    add_folder(parser)
    parser.add_argument("file", type=Path, metavar="FILE", help="tar archive to write; it holds the secrets too")
    args = parser.parse_exactly(argv)
    from pa3dfl.deploy.backup import backup as write

    size = write(deployment_in(args.dir), args.file)
    print(f"{args.file}: {size / 1e6:.1f} MB, with keys and token: keep it where only you can read it")


def restore(argv: list[str]) -> None:
    parser = Parser("pa3dfl deploy restore", description="Make a deployment folder from a backup.")
    parser.add_argument("file", type=Path, metavar="FILE", help="archive written by `pa3dfl deploy backup`")
    add_folder(parser)
    args = parser.parse_exactly(argv)
    from pa3dfl.deploy.backup import restore as unpack

    unpack(args.file, deployment_in(args.dir))
    print(f"{args.dir}: restored; next: pa3dfl deploy server {args.dir}, then pa3dfl deploy train {args.dir} --resume")


STEPS: Mapping[str, Callable[[list[str]], None]] = {
    "register": register,
    "status": status,
    "revoke": revoke,
    "rotate-key": rotate_key,
    "backup": backup,
    "restore": restore,
}
