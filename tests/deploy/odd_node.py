"""A node that lies, or one that is slow: `python odd_node.py liar|slow SECONDS deploy node …`.

Everything is that of `pa3dfl deploy node …` but its executor, which is this file again.
"""

import random
import sys
import time

import torch

from pa3dfl.core.tree import Tree
from pa3dfl.deploy import executor, node, node_launcher
from pa3dfl.engines.flower import messages
from pa3dfl.engines.flower import node as answering

LIES = ("the opposite, ten times", "not a number", "torn", "another shape")


def lie(tree: Tree) -> bytes:
    kind = random.choice(LIES)
    if kind == "torn":
        return messages.pack(tree)[:-7]
    if kind == "another shape":
        return messages.pack({k: v[None] for k, v in tree.items()})
    factor = -10.0 if kind == "the opposite, ten times" else float("nan")
    return messages.pack({k: factor * v for k, v in tree.items()})


def execute(what: str, seconds: float, words: list[str]) -> None:
    if what == "liar":
        answering.pack = lie  # type: ignore[attr-defined]
    honest = node.on_message

    def late(*given: object) -> object:
        time.sleep(seconds)
        random.seed()
        return honest(*given)  # type: ignore[arg-type]

    node.on_message = late  # type: ignore[assignment]
    torch.set_num_threads(1)
    executor.main(*words)


def launch(what: str, seconds: str, words: list[str]) -> None:
    supervised = node_launcher.supervised

    def odd(supernode: list[str], executor: list[str]) -> list[str]:
        return supervised(supernode, [sys.executable, __file__, what, seconds, "execute", *executor[3:]])

    node_launcher.supervised = odd  # type: ignore[assignment]
    from pa3dfl.cli import main

    sys.exit(main(words))


if __name__ == "__main__":
    _, what, seconds, *words = sys.argv
    if words[0] == "execute":
        execute(what, float(seconds), words[1:])
    else:
        launch(what, seconds, words)
