"""Who is who: Flower's nodes by name, and the seat (client number) of each. Nodes come, go and come back."""

import json
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from pa3dfl.core.errors import UserError
from pa3dfl.core.files import write_atomically
from pa3dfl.core.options.capacity import parse_ratio
from pa3dfl.deploy.parts import Common, Sizes, agree
from pa3dfl.engines.flower.engine import GONE, content, record
from pa3dfl.engines.flower.wire import Facts, Refused, whole

# A node that was asked who it is and has said nothing for so long, or nothing that will do, is asked again.
ASK_AGAIN_SECONDS = 120.0
RETRY_SECONDS = 30.0


@dataclass
class Seat:
    """What a node has said of itself: it leaves the node once, before training."""

    name: str
    node: int
    r: str
    sizes: Sizes
    shape: tuple[int, ...]
    classes: int
    bytes: bool
    histogram: list[list[int]] | None

    @property
    def share(self) -> Fraction:
        return parse_ratio(self.r, "capacity")


class Roll:
    def __init__(self, grid: Grid, file: Path, ask: Facts, secure: bool, say: Callable[[str], None]) -> None:
        self.grid, self.file, self.ask, self.secure, self.say = grid, file, ask, secure, say
        self.seats: list[Seat | None] = []
        self.token = ""
        self.common: Common | None = None
        self.admit: Callable[[int, Seat], str | None] | None = None
        """Called with a late node and its seat: None, or why it cannot take it."""
        self._here: dict[int, Seat] = {}
        self._later: dict[int, tuple[float, str]] = {}
        self._asked: dict[str, tuple[int, float]] = {}

    def gather(self, wanted: int, patience: float) -> None:
        """Wait until so many nodes are here."""
        deadline, told = time.monotonic() + patience, -1
        while True:
            self._meet()
            if len(self._here) != told:
                told = len(self._here)
                names = ", ".join(sorted(s.name for s in self._here.values())) or "nobody"
                self.say(f"{told} of {wanted} nodes are here: {names}")
            if told >= wanted:
                return
            if time.monotonic() > deadline:
                raise UserError(
                    f"{told} of {wanted} nodes came within {patience:.0f} s: start the others, or wait for fewer"
                )
            time.sleep(1)

    def take_seats(self, seats: int, data: str) -> None:
        """The start of a run: everybody who is here, in the order of names."""
        here = sorted(self._here.values(), key=lambda s: s.name)
        if len(here) > seats:
            raise UserError(f"{len(here)} nodes are here for {seats} seats: raise `clients` in config.yaml")
        shapes = {(s.shape, s.bytes) for s in here}
        if len(shapes) > 1:
            raise UserError(f"nodes have rows of different kinds: {', '.join(f'{s.name} {s.shape}' for s in here)}")
        classes = max(s.classes for s in here)
        if classes < 2:
            raise UserError("all nodes have the same single label: at least 2 classes are needed")
        histograms = [np.array(s.histogram) for s in here if s.histogram is not None]
        if histograms and len(histograms) < len(here):
            raise UserError("some nodes have counted their bytes and some have not: start the nodes with one version")
        self.common = agree(data, here[0].shape, classes, here[0].bytes, histograms)
        self.seats = [*here, *[None] * (seats - len(here))]
        self.token = secrets.token_hex(8)
        self.save()

    def save(self) -> None:
        assert self.common is not None
        seats = [None if s is None else asdict(s) for s in self.seats]
        saved = {"token": self.token, "common": self.common.facts(), "seats": seats}
        write_atomically(self.file, (json.dumps(saved) + "\n").encode())

    def load(self) -> None:
        try:
            saved = json.loads(self.file.read_text())
            self.token, self.common = saved["token"], Common.of(saved["common"])
            self.seats = [None if s is None else _seat(s) for s in saved["seats"]]
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise UserError(f"{self.file} cannot be read ({e}): start the run anew") from None
        known = {s.name for s in self.seats if s is not None}
        for node, seat in list(self._here.items()):
            if seat.name in known:
                self._settle(node, seat)
            else:  # asked again once it can be judged
                del self._here[node]

    def nodes(self) -> dict[int, int]:
        online = set(self._meet())
        return {i: s.node for i, s in enumerate(self.seats) if s is not None and s.node in online}

    def close(self) -> None:
        """Nodes stay: they belong to others."""

    def _meet(self) -> list[int]:
        """Ask strangers who they are, hear who has answered; waits for nobody. Returns who is online."""
        online, now = list(self.grid.get_node_ids()), time.monotonic()
        self._asked = {i: a for i, a in self._asked.items() if now - a[1] < ASK_AGAIN_SECONDS}
        waiting = {node for node, _ in self._asked.values()}
        for node in online:
            if node not in self._here and node not in waiting and now > self._later.get(node, (0.0, ""))[0]:
                message = Message(record(self.ask, b""), node, "query", ttl=ASK_AGAIN_SECONDS)
                self._asked |= {i: (node, now) for i in self.grid.push_messages([message]) if i}
        if self._asked:
            for reply in self.grid.pull_messages(list(self._asked)):
                asked = self._asked.pop(reply.metadata.reply_to_message_id, None)
                # A node that went away before it could answer is nobody's fault: it is asked when it is back.
                if asked is not None and not (reply.has_error() and reply.error.code in GONE):
                    self._hear(asked[0], reply)
        return online

    def _hear(self, node: int, reply: Message) -> None:
        try:
            seat = seat_of(node, content(reply)[0])
            other = next((s for s in self._here.values() if s.name == seat.name), None)
            if other is not None and (self.secure or other.node in set(self.grid.get_node_ids())):
                raise Refused(f"the name {seat.name!r} is taken")
        except Refused as e:
            self._turn_away(node, str(e))
            return
        if other is not None:
            del self._here[other.node]
        self._here[node] = seat
        if self.seats:
            self._settle(node, seat)

    def _settle(self, node: int, seat: Seat) -> None:
        try:
            self._place(seat)
        except Refused as e:
            del self._here[node]
            self._turn_away(node, str(e))

    def _turn_away(self, node: int, reason: str) -> None:
        if self._later.get(node, (0.0, ""))[1] != reason:
            self.say(f"a node was not let in: {reason}")
        self._later[node] = (time.monotonic() + RETRY_SECONDS, reason)

    def _place(self, seat: Seat) -> None:
        """A node that comes back, or comes late, gets its seat or a free one."""
        for old in self.seats:
            if old is not None and old.name == seat.name:
                if self.secure and old.node != seat.node:
                    raise Refused(f"the name {seat.name!r} belongs to another key")
                old.node = seat.node
                if seat.r != old.r:
                    self.say(f"{seat.name} has capacity {seat.r} now: in this run it keeps the width of {old.r}")
                return
        if None not in self.seats:
            raise Refused(f"{seat.name!r}: all {len(self.seats)} seats are taken")
        i = self.seats.index(None)
        reason = self.admit(i, seat) if self.admit else None
        if reason is not None:
            raise Refused(f"{seat.name!r}: {reason}")
        self.seats[i] = seat
        self.save()
        self.say(f"{seat.name} came later and is client {i}")


def _seat(saved: dict[str, Any]) -> Seat:
    return Seat(**(saved | {"sizes": tuple(saved["sizes"]), "shape": tuple(saved["shape"])}))


def seat_of(node: int, facts: dict[str, Any]) -> Seat:
    """A node's words about itself, checked."""
    if "error" in facts:
        raise Refused(str(facts["error"])[:500])
    name, r, shape, sizes = (facts.get(k) for k in ("name", "r", "shape", "sizes"))
    if not isinstance(name, str) or not 0 < len(name) <= 100 or not name.isprintable():
        raise Refused("a node without a name")
    lists = isinstance(shape, list) and isinstance(sizes, list) and len(sizes) == 3 and 0 < len(shape) <= 4
    if not lists or not all(type(v) is int and 0 < v < 2**31 for v in (*shape, *sizes)):  # type: ignore[misc]
        raise Refused(f"{name!r} says shape {str(shape)[:40]} and sizes {str(sizes)[:40]}")
    counts = facts.get("histogram")
    if counts is not None:
        try:
            table = np.array(counts, dtype=np.int64)
        except (ValueError, TypeError, OverflowError):
            raise Refused(f"{name!r} has no proper histogram") from None
        if table.shape != (shape[0], 256) or table.min() < 0 or table.sum(1).min() < 1:  # type: ignore[index]
            raise Refused(f"{name!r} has no proper histogram")
    classes = whole(facts, "classes")
    if not 0 < classes <= 1_000_000:
        raise Refused(f"{name!r} says {classes} classes")
    try:
        share = parse_ratio(str(r)[:40], "capacity")
    except UserError as e:
        raise Refused(f"{name!r}: {e}") from None
    images = facts.get("bytes") is True
    return Seat(name, node, str(share), tuple(sizes), tuple(shape), classes, images, counts)  # type: ignore[arg-type]
