"""The commands `pa3dfl deploy …` and `pa3dfl predict`: arguments in, one line out for whatever cannot be."""

import errno
import json
import os
import socket
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

from pa3dfl.cli.flags import Parser, add_config, peek, say
from pa3dfl.core.errors import UserError
from pa3dfl.core.options.config import Config, read_yaml
from pa3dfl.core.options.schema import coerce

# What a deployment decides by itself, or what its nodes bring along.
FIXED = (
    "engine", "out", "data_dir", "clients", "partition", "dirichlet_alpha", "classes_per_client", "setting",
    "checkpoint_every",
)  # fmt: skip


def deploy(argv: list[str]) -> None:
    parser = Parser("pa3dfl deploy", description="A federation on real machines; docs/deploy.md goes through it.")
    parser.add_argument("what", choices=list(STEPS), help="what to do; each takes --help")
    args = parser.parse_args(argv[:1])
    if find_spec("flwr") is None:
        raise UserError("deploy needs Flower: pip install 'pa3dfl[flower]'")
    STEPS[args.what](argv[1:])


def init(argv: list[str]) -> None:
    parser = Parser("pa3dfl deploy init", description="Write the Flower app, certificates for tests, keys and configs.")
    _folder(parser)
    parser.add_argument("--nodes", default="3", metavar="N", help="how many nodes get a folder and a key [3]")
    parser.add_argument("--host", default="127.0.0.1", metavar="X", help="where nodes find the server [127.0.0.1]")
    parser.add_argument("--port", default="9093", metavar="N", help="its port [9093]")
    parser.add_argument("--insecure", action="store_true", help="no TLS, no keys: for tests on one machine only")
    from pa3dfl import methods
    from pa3dfl.methods.assembly import configure, flat, option_fields

    cls = methods.find(peek(argv, "--method") or Config.method)
    add_config(parser, cls.name, option_fields(cls), without=FIXED)
    args = vars(parser.parse_exactly(argv))
    from pa3dfl.deploy.init import init as write

    site, nodes, port = _site(args.pop("dir")), coerce("nodes", args.pop("nodes"), int), args.pop("port")
    if nodes < 1:
        raise UserError(f"nodes is {nodes}: expected at least 1")
    host, insecure = args.pop("host"), args.pop("insecure")
    args.setdefault("data", "nodes")  # a name that stands for no data set: nodes bring theirs
    known = flat(configure(args))
    folders = write(site, nodes, host, coerce("port", port, int), insecure, {k: known[k] for k in args})
    print(f"{site.folder}: written for {len(folders)} nodes; what is trained is in {site.config}")
    print(f"next: pa3dfl deploy server {site.folder}")
    print(f"then on each node: pa3dfl deploy node {folders[0]} --data FILE.npz --capacity 1/4")


def server(argv: list[str]) -> None:
    parser = Parser(
        "pa3dfl deploy server", description="Start Flower's SuperLink and let in the nodes whose key is there."
    )
    _folder(parser)
    site = _site(parser.parse_exactly(argv).dir)
    settings, environment = site.settings(), site.environment()
    site.read_token()
    site.proxies()
    _bindable(str(settings["host"]), int(settings["port"]))
    sys.stdout.flush()
    # Becomes the SuperLink, with Flower's settings in its environment from the start.
    os.execve(sys.executable, [sys.executable, "-m", "pa3dfl.deploy.superlink", str(site.folder)], environment)


def register(argv: list[str]) -> None:
    parser = Parser(
        "pa3dfl deploy register", description="Let in the nodes whose public key is in DIR/keys, and no others."
    )
    _folder(parser)
    site = _site(parser.parse_exactly(argv).dir)
    if site.settings()["insecure"]:
        raise UserError(f"{site.folder} was made with --insecure: its nodes have no keys")
    from pa3dfl.deploy.control import register as let_in

    for line in let_in(site):
        print(f"pa3dfl: {line}", flush=True)


def node(argv: list[str]) -> None:
    parser = Parser("pa3dfl deploy node", description="Start a node: its data and its model stay on this machine.")
    parser.add_argument("dir", type=Path, metavar="DIR", help="this node's folder, as written by `pa3dfl deploy init`")
    parser.add_argument("--data", metavar="FILE", help="its own rows: a .npz with x and y [that of node.yaml]")
    parser.add_argument(
        "--capacity",
        metavar="X",
        help="share of the full model (1/4), or a budget: 20MB, 300Mmac [that of node.yaml, 1]",
    )
    parser.add_argument("--device", metavar="X", help="auto, cpu or cuda [auto]")
    parser.add_argument("--threads", metavar="N", help="CPU threads [as the server says]")
    parser.add_argument("--insecure", action="store_true", help="no TLS, no key: for tests on one machine only")
    args = parser.parse_exactly(argv)
    from pa3dfl.deploy.start import start_node

    flags = {k: v for k, v in vars(args).items() if k != "dir" and v not in (None, False)}
    path = args.dir / "node.yaml"
    if not path.exists():
        raise UserError(f"{args.dir} is not a node's folder: it has no node.yaml; `pa3dfl deploy init` writes one")
    start_node(args.dir.resolve(), read_yaml(path) | flags)


def train(argv: list[str]) -> None:
    parser = Parser(
        "pa3dfl deploy train", description="Train with the nodes that are there; run it where the server is."
    )
    _folder(parser)
    parser.add_argument("--resume", action="store_true", help="go on after the last round that was kept")
    parser.add_argument("--overwrite", action="store_true", help="start anew over an earlier run")
    parser.add_argument("--wait-for", default="0", metavar="N", help="nodes to wait for [all]")
    parser.add_argument("--patience", dest="wait_s", default="600", metavar="S", help="seconds to wait for them [600]")
    args = parser.parse_exactly(argv)
    from pa3dfl.deploy.control import train as drive

    wait_for, wait_s = coerce("wait-for", args.wait_for, int), coerce("patience", args.wait_s, float)
    drive(_site(args.dir), args.resume, args.overwrite, wait_for, wait_s)


STEPS: Mapping[str, Callable[[list[str]], None]] = {
    "init": init,
    "server": server,
    "register": register,
    "node": node,
    "train": train,
}


def predict(argv: list[str]) -> None:
    parser = Parser("pa3dfl predict", description="What a node's own model says of a file's rows.")
    parser.add_argument("model", type=Path, metavar="MODEL", help="a node's folder, or its model.json")
    parser.add_argument("file", type=Path, metavar="FILE", help=".npz with x, and y if accuracy is asked for")
    parser.add_argument("--out", type=Path, metavar="X", help="write labels and probabilities to this .npz")
    parser.add_argument("--json", action="store_true", help="print as JSON")
    args = parser.parse_exactly(argv)
    import numpy as np

    from pa3dfl.data import load_own
    from pa3dfl.runs import personal

    arrays = load_own(args.file)
    p = personal.predict(personal.read(args.model), arrays)
    label = p.argmax(1)
    facts = {"rows": len(label), "accuracy": float((label == arrays.y).mean()), "labels": label.tolist()}
    if args.out is not None:
        np.savez(args.out, label=label, probability=p)
    if args.json:
        print(json.dumps(facts))
        return
    print(f"{facts['rows']} rows, accuracy {100 * facts['accuracy']:.1f}%")
    if args.out is None:
        print(" ".join(map(str, label.tolist())))
    else:
        say(f"labels and probabilities are in {args.out}")


def _folder(parser: Parser) -> None:
    parser.add_argument("dir", type=Path, metavar="DIR", help="the deployment's folder")


def _site(folder: Path) -> "Site":  # type: ignore[name-defined]  # noqa: F821
    from pa3dfl.deploy.site import Site

    return Site(folder)


def _bindable(host: str, port: int) -> None:
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(place)
    except OSError as e:
        if e.errno == errno.EADDRINUSE:
            reason = "is in use: stop what listens there, or set another port in server.yaml"
        else:
            reason = (
                f"cannot be listened at ({e.strerror or e}): set host and port in server.yaml; 0.0.0.0 is any address"
            )
        raise UserError(f"{host}:{port} {reason}") from None
