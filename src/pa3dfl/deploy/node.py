"""A node of a deployment: one client, its data file and its disk."""

import json
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message

from pa3dfl.core.errors import UserError
from pa3dfl.core.logging import log
from pa3dfl.core.options.config import Config
from pa3dfl.core.tree import Tree
from pa3dfl.data import Arrays, histogram, load_own, split_one
from pa3dfl.data.federated import STATISTICS
from pa3dfl.deploy.capacity import share_of
from pa3dfl.deploy.tasks import Common, node_task
from pa3dfl.engines import engine_of
from pa3dfl.engines.flower.engine import content, record
from pa3dfl.engines.flower.messages import Facts, Refused
from pa3dfl.engines.flower.node import LocalRun, answer
from pa3dfl.engines.flower.state_store import StateStore
from pa3dfl.engines.sequential import Sequential
from pa3dfl.methods import Score
from pa3dfl.methods.assembly import configure, make_method
from pa3dfl.methods.problem import Client
from pa3dfl.runs.personal import describe, write_card, write_tensors


def on_message(message: Message, context: Context) -> Message:
    node = RealNode(dict(context.node_config))
    try:
        order, blob = content(message)
        facts, reply = node.introduce(order) if order["kind"] == "who" else answer(node, order, blob)
        if order["kind"] in ("train", "test") and "error" not in facts:
            facts |= node.present()
    except (UserError, Refused) as e:
        facts, reply = {"error": str(e)}, b""
    if "error" in facts:
        say(facts["error"])
    return Message(record(facts, reply), reply_to=message)


def say(text: str) -> None:
    """Log a text, cut to a limit: it may come from the server."""
    log.info(text[:1000])


class RealNode:
    def __init__(self, node: dict[str, Any]) -> None:
        self.node, self.folder = node, Path(str(node["folder"]))

    @cached_property
    def arrays(self) -> Arrays:
        return load_own(Path(str(self.node["data"])))

    def config(self, order: Facts) -> Config:
        self.check_code(order["config"])
        config = configure(order["config"] | {"device": str(self.node["device"])})
        config = replace(config, threads=int(self.node["threads"]) or config.threads)
        torch.set_num_threads(config.threads)
        return config

    def check_code(self, config: Facts) -> None:
        """Refuse to import `package.module:name` unless this node's own node.yaml lists it."""
        told = str(self.node.get("code", "")).split(",")
        for field in ("method", "model"):
            name = str(config.get(field))
            if ":" in name and name not in told:
                raise Refused(
                    f"{field} {name[:200]!r} is code that this node does not allow: add it to `code` in node.yaml"
                )

    def introduce(self, order: Facts) -> tuple[Facts, bytes]:
        """Describe the data of this node. A histogram of bytes is sent only if the statistics are not known by name."""
        config, x = self.config(order), self.arrays.x
        images = x.dtype == np.uint8
        shape = tuple(x.shape[1:])
        return {
            "name": str(self.node["name"]),
            "r": str(share_of(str(self.node["capacity"]), config, shape, max(2, self.arrays.classes))),
            "shape": list(shape),
            "classes": self.arrays.classes,
            "bytes": images,
            "histogram": histogram(x).tolist() if images and config.data not in STATISTICS else None,
        } | self.present(), b""

    def present(self) -> Facts:
        """The facts that may change between rounds."""
        parts = split_one(0, np.arange(len(self.arrays.y)), 0)  # the numbers are the same for every client and seed
        return {"sizes": [len(parts.train), len(parts.val), len(parts.test)], "capacity": str(self.node["capacity"])}

    def local_run(self, order: Facts) -> LocalRun:
        if order["rejected"]:
            say(f"the server rejected the last answer: {order['rejected']}")
        config = self.config(order)
        common, widths = Common.of(order["common"]), [Fraction(w) for w in order["widths"]]
        r = Fraction(order["shares"][order["client"]])
        task = node_task(config, common, self.arrays, order["client"], widths, r)
        worker = engine_of("sequential", task.device)
        assert isinstance(worker, Sequential)
        states = StateStore(self.state(order), keep=3)
        if order["receipt"] is not None and not states.rounds():
            say(f"there is no private state in {states.folder}: this node starts afresh")
        return LocalRun(make_method(config), task, worker, states)

    def state(self, order: Facts) -> Path:
        token = str(order["run"])
        if not token.isalnum():  # it becomes the name of a folder
            raise Refused(f"run {token[:40]!r}: expected letters and digits")
        return self.folder / "state" / token

    def tested(self, place: LocalRun, client: Client, order: Facts, score: Score, model: Tree) -> None:
        """Keep a tested model until a better one is known."""
        folder, rnd, cards = self.models(order), order["round"], self.cards(order)
        config = self.config(order)
        # By rule `kept`, a node that has not trained yet uses the model that it receives.
        waiting = config.tested == "kept" and not any(c["rule"] == "kept" for c in cards)
        if score.rule != config.tested and not (waiting and score.rule == "received"):
            return
        card = describe(place.method, place.task, client, dict(config.options), config.method)
        card |= {"client": client.id, "round": rnd, "file": f"model.{rnd}.safetensors"}
        card |= {
            "rule": score.rule,
            "val_accuracy": score.val_accuracy,
            "test_accuracy": score.test_accuracy,
            "alpha": score.alpha,
            "data": str(self.node["data"]),
            "seed": config.seed,
            "exact": place.task.compute is None and place.task.device.type == "cpu",
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_tensors(folder / card["file"], model)
            (folder / f"{rnd}.json").write_text(json.dumps(card))
            cards = self.cards(order)
            best = self.choose(cards, order["best"], place.method.best_round_per_client)
            self.publish(order, best or card)
            for old in cards:
                if old["round"] not in (rnd, (best or card)["round"]):
                    (folder / f"{old['round']}.json").unlink(missing_ok=True)
                    (folder / old["file"]).unlink(missing_ok=True)
        except OSError as e:
            raise UserError(f"the model could not be written to {folder}: {e.strerror}") from None

    def conclude(self, order: Facts) -> None:
        chosen = self.choose(self.cards(order), order["round"], order["own"])
        if chosen is None:
            raise UserError(f"this node was not evaluated in round {order['round']}: it keeps its latest model")
        self.publish(order, chosen)

    def choose(self, cards: list[dict[str, Any]], best: int, own: bool) -> dict[str, Any] | None:
        """Choose the model of the federation's best evaluation or, if `own`, of this node's best."""
        if own:
            return max(cards, key=lambda c: (c["val_accuracy"], -c["round"]), default=None)
        found = [c for c in cards if c["round"] == best or (c["rule"] == "kept" and c["round"] < best)]
        return max(found, key=lambda c: c["round"], default=None)

    def publish(self, order: Facts, card: dict[str, Any]) -> None:
        """Make this model the personal model of the node; its file is not moved."""
        file = (self.models(order) / card["file"]).relative_to(self.folder)
        write_card(self.folder, card | {"file": str(file)})

    def models(self, order: Facts) -> Path:
        return self.state(order) / "models"

    def cards(self, order: Facts) -> list[dict[str, Any]]:
        return [json.loads(p.read_text()) for p in sorted(self.models(order).glob("*.json"))]
