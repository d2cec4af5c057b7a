"""The commands `pa3dfl deploy …`."""

import errno
import os
import socket
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

from pa3dfl.cli import operate
from pa3dfl.cli.flags import Parser, add_config, peek
from pa3dfl.cli.operate import add_folder, deployment_in
from pa3dfl.core.errors import UserError
from pa3dfl.core.options.config import Config, read_yaml
from pa3dfl.core.options.schema import coerce, whole_number
from pa3dfl.core.words import counted

PORTS = 65535
# Options that the deployment sets itself or that its nodes provide.
FIXED = (
    "engine", "out", "data_dir", "clients", "partition", "dirichlet_alpha", "classes_per_client", "setting",
    "checkpoint_every", "newcomers",
)  # fmt: skip


def deploy(argv: list[str]) -> None:
    parser = Parser("pa3dfl deploy", description="Run a federation on several machines, see docs/deploy.md.")
    parser.add_argument("what", choices=list(STEPS), help="step; each takes --help")
    args = parser.parse_args(argv[:1])
    if find_spec("flwr") is None:
        raise UserError("deploy needs Flower: pip install 'pa3dfl[flower]'")
    STEPS[args.what](argv[1:])


def init(argv: list[str]) -> None:
    parser = Parser(
        "pa3dfl deploy init",
        description="Write the deployment folder: certificates for tests, keys, configs, node folders.",
    )
    add_folder(parser)
    parser.add_argument("--nodes", default="3", metavar="N", help="number of nodes; each gets a folder and a key [3]")
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="X", help="address of the server, as nodes see it [127.0.0.1]"
    )
    parser.add_argument("--port", default="9093", metavar="N", help="port of the server [9093]")
    parser.add_argument("--insecure", action="store_true", help="no TLS and no keys, for tests on one machine")
    parser.add_argument("--service", metavar="X", help="write files for systemd or for compose, too [none]")
    from pa3dfl import methods
    from pa3dfl.methods.assembly import configure, flat, option_fields

    cls = methods.find(peek(argv, "--method") or Config.method)
    add_config(parser, cls.name, option_fields(cls), without=FIXED)
    args = vars(parser.parse_exactly(argv))
    from pa3dfl.deploy.init import init as write
    from pa3dfl.deploy.services import KINDS, write_services

    deployment, nodes = deployment_in(args.pop("dir")), whole_number("nodes", args.pop("nodes"), at_least=1)
    port = whole_number("port", args.pop("port"), 1, PORTS)
    host, insecure, service = args.pop("host"), args.pop("insecure"), args.pop("service")
    if service not in (None, *KINDS):
        raise UserError(f"service is {service!r}: expected one of {', '.join(KINDS)}")
    args.setdefault("data", "nodes")  # not the name of a data set: each node has its own data
    known = flat(configure(args))
    folders = write(deployment, nodes, host, port, insecure, {k: known[k] for k in args})
    print(
        f"{deployment.path}: written for {counted(len(folders), 'node')}; "
        f"the options of the training are in {deployment.config}"
    )
    if service:
        print("\n".join(map(str, write_services(deployment, folders, service))))
    print(f"next: pa3dfl deploy server {deployment.path}")
    print(f"then on each node: pa3dfl deploy node {folders[0]} --data FILE.npz --capacity 1/4")


def server(argv: list[str]) -> None:
    parser = Parser(
        "pa3dfl deploy server",
        description="Start Flower's SuperLink and register the nodes whose public key is in DIR/keys.",
    )
    add_folder(parser)
    parser.add_argument(
        "--metrics", metavar="PORT", help="serve metrics for Prometheus on this port of 127.0.0.1 [not served]"
    )
    args = parser.parse_exactly(argv)
    deployment = deployment_in(args.dir)
    settings, environment = deployment.settings(), deployment.environment()
    deployment.read_token()
    deployment.proxies()
    _bindable(str(settings["host"]), int(settings["port"]), "server.yaml")
    more = []
    if args.metrics is not None:
        from pa3dfl.deploy.metrics import HOST, check_installed

        check_installed()
        port = whole_number("metrics", args.metrics, 1, PORTS)
        _bindable(HOST, port, "--metrics")
        more = [str(port)]
    sys.stdout.flush()
    # This process becomes the SuperLink. Flower reads its settings from the environment when it is imported.
    words = [sys.executable, "-m", "pa3dfl.deploy.superlink", str(deployment.path), *more]
    os.execve(sys.executable, words, environment)


def node(argv: list[str]) -> None:
    parser = Parser("pa3dfl deploy node", description="Start a node. Its data and its model stay on this machine.")
    parser.add_argument("dir", type=Path, metavar="DIR", help="folder of the node, written by `pa3dfl deploy init`")
    parser.add_argument("--data", metavar="FILE", help="data of the node: a .npz with x and y [that of node.yaml]")
    parser.add_argument(
        "--capacity",
        metavar="X",
        help="share of the full model (1/4) or budget (20MB, 300Mmac) [that of node.yaml, or 1]",
    )
    parser.add_argument("--device", metavar="X", help="auto, cpu or cuda [auto]")
    parser.add_argument("--threads", metavar="N", help="CPU threads [those of the server's config]")
    parser.add_argument("--insecure", action="store_true", help="no TLS and no key, for tests on one machine")
    args = parser.parse_exactly(argv)
    from pa3dfl.deploy.node_launcher import start_node

    flags = {k: v for k, v in vars(args).items() if k != "dir" and v not in (None, False)}
    path = args.dir / "node.yaml"
    if not path.exists():
        raise UserError(f"{args.dir} is not a node's folder: it has no node.yaml; `pa3dfl deploy init` writes one")
    start_node(args.dir.resolve(), read_yaml(path) | flags)


def train(argv: list[str]) -> None:
    parser = Parser(
        "pa3dfl deploy train", description="Train with the connected nodes. Run this on the machine of the server."
    )
    add_folder(parser)
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier run")
    parser.add_argument(
        "--join", action="store_true", help="after training: give new nodes a model; the others do nothing"
    )
    parser.add_argument(
        "--wait-for", default="0", metavar="N", help="number of nodes to wait for [all; with --join one new node]"
    )
    parser.add_argument("--patience", dest="wait_s", default="600", metavar="S", help="seconds to wait for nodes [600]")
    args = parser.parse_exactly(argv)
    from pa3dfl.deploy.launcher import train as drive

    wait_for, wait_s = whole_number("wait-for", args.wait_for, at_least=0), coerce("patience", args.wait_s, float)
    drive(deployment_in(args.dir), args.resume, args.overwrite, args.join, wait_for, wait_s)


STEPS: Mapping[str, Callable[[list[str]], None]] = {
    "init": init,
    "server": server,
    "node": node,
    "train": train,
    **operate.STEPS,
}


def _bindable(host: str, port: int, option: str) -> None:
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(place)
    except OSError as e:
        if e.errno == errno.EADDRINUSE:
            reason = f"is in use: stop the program that listens there, or set another port in {option}"
        else:
            reason = (
                f"cannot be listened on ({e.strerror or e}): set host and port in server.yaml; 0.0.0.0 is any address"
            )
        raise UserError(f"{host}:{port} {reason}") from None
