"""The client registry: which Flower node is which client. Nodes join, leave and come back during a run."""

import json
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from pa3dfl.core.errors import UserError
from pa3dfl.core.files import write_atomically
from pa3dfl.core.words import counted
from pa3dfl.deploy.registration import Registration, capacity_of, registration_of, restored, sizes_of
from pa3dfl.deploy.tasks import Common, Sizes, agree
from pa3dfl.engines.flower.engine import GONE, content, record
from pa3dfl.engines.flower.messages import Facts, Refused

# After these times, a node is asked for its description again: without an answer, or after a refused one.
ASK_AGAIN_SECONDS = 120.0
RETRY_SECONDS = 30.0
LOOK_SECONDS = 0.2


class ClientRegistry:
    def __init__(self, grid: Grid, file: Path, ask: Facts, secure: bool, say: Callable[[str], None]) -> None:
        self.grid, self.file, self.ask, self.secure, self.say = grid, file, ask, secure, say
        self.registrations: list[Registration | None] = []
        self.token = ""
        self.common: Common | None = None
        self.admit: Callable[[int, Registration], str | None] | None = None
        """Called with the client number and the registration of a late node; returns None or why it is refused."""
        self.joining = False
        """Whether late nodes come after the last round; then any number of them may join."""
        self.recount: Callable[[int, Sizes], None] = lambda i, sizes: None
        """Called when a client's numbers of rows have changed."""
        self.left: Callable[[int], bool] = lambda node: False
        """Whether a node is gone for good: its key was unregistered."""
        self._here: dict[int, Registration] = {}
        self._later: dict[int, tuple[float, str]] = {}
        self._asked: dict[str, tuple[int, float]] = {}

    def gather(self, wanted: int, patience: float) -> None:
        """Wait until `wanted` nodes have answered."""
        deadline, told = time.monotonic() + patience, -1
        while True:
            self._meet()
            if len(self._here) != told:
                told = len(self._here)
                names = ", ".join(sorted(s.name for s in self._here.values())) or "nobody"
                self.say(f"{told} of {counted(wanted, 'node is connected', 'nodes are connected')}: {names}")
            if told >= wanted:
                return
            if time.monotonic() > deadline:
                raise UserError(
                    f"{told} of {counted(wanted, 'node')} came within {patience:.0f} s: start the others, or wait for "
                    "fewer"
                )
            time.sleep(LOOK_SECONDS)

    def enroll(self, slots: int, data: str) -> None:
        """Start a run: number the present nodes by name, and leave the other client numbers free."""
        here = sorted(self._here.values(), key=lambda s: s.name)
        if len(here) > slots:
            raise UserError(f"{len(here)} nodes are connected, but `clients` is {slots}: raise it in config.yaml")
        shapes = {(s.shape, s.bytes) for s in here}
        if len(shapes) > 1:
            raise UserError(f"nodes have rows of different kinds: {', '.join(f'{s.name} {s.shape}' for s in here)}")
        classes = max(s.classes for s in here)
        if classes < 2:
            raise UserError("all nodes have the same single label: at least 2 classes are needed")
        histograms = [np.array(s.histogram) for s in here if s.histogram is not None]
        if histograms and len(histograms) < len(here):
            raise UserError("some nodes sent a histogram and some did not: start all nodes with the same version")
        self.common = agree(data, here[0].shape, classes, here[0].bytes, histograms)
        self.registrations = [*here, *[None] * (slots - len(here))]
        self.token = secrets.token_hex(8)
        self.save()

    def save(self) -> None:
        assert self.common is not None
        registrations = [None if s is None else asdict(s) for s in self.registrations]
        saved = {"token": self.token, "common": self.common.facts(), "registrations": registrations}
        write_atomically(self.file, (json.dumps(saved) + "\n").encode())

    def load(self) -> None:
        try:
            saved = json.loads(self.file.read_text())
            self.token, self.common = saved["token"], Common.of(saved["common"])
            self.registrations = [None if s is None else restored(s) for s in saved["registrations"]]
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise UserError(f"{self.file} cannot be read ({e}): start a new run") from None
        known = {s.name for s in self.registrations if s is not None}
        for node, registration in list(self._here.items()):
            if registration.name in known:
                self._settle(node, registration)
            else:  # a new node is asked again when the task is known
                del self._here[node]

    def nodes(self) -> dict[int, int]:
        online = set(self._meet())
        return {i: s.node for i, s in enumerate(self.registrations) if s is not None and s.node in online}

    def heard(self, client: int, facts: Facts) -> None:
        """Store the facts about its node that an answer brings."""
        registration = self.registrations[client]
        if registration is not None:
            self._renew(client, registration, sizes_of(facts), capacity_of(facts))

    def close(self) -> None:
        """Nothing to do: nodes outlive the server."""

    def _meet(self) -> list[int]:
        """Ask unknown nodes for their description, collect answers without waiting, return the ids of online nodes."""
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
                # A node that left before it could answer is asked again when it is back.
                if asked is not None and not (reply.has_error() and reply.error.code in GONE):
                    self._hear(asked[0], reply)
        return online

    def _hear(self, node: int, reply: Message) -> None:
        try:
            registration = registration_of(node, content(reply)[0])
            other = next((s for s in self._here.values() if s.name == registration.name), None)
            if other is not None and self._present(other.node):
                raise Refused(f"the name {registration.name!r} is taken")
        except Refused as e:
            self._turn_away(node, str(e))
            return
        if other is not None:
            del self._here[other.node]
        self._here[node] = registration
        if self.registrations:
            self._settle(node, registration)

    def _present(self, node: int) -> bool:
        """Whether a name still belongs to this node. Without keys, a node has another number at every start."""
        return not self.left(node) if self.secure else node in set(self.grid.get_node_ids())

    def _settle(self, node: int, registration: Registration) -> None:
        try:
            self._place(registration)
        except Refused as e:
            del self._here[node]
            self._turn_away(node, str(e))

    def _turn_away(self, node: int, reason: str) -> None:
        if self._later.get(node, (0.0, ""))[1] != reason:
            self.say(f"a node was refused: {reason}")
        self._later[node] = (time.monotonic() + RETRY_SECONDS, reason)

    def _place(self, registration: Registration) -> None:
        """Give a node that comes back its client number, and a late node a free one or that of a node that left."""
        for i, old in enumerate(self.registrations):
            if old is not None and old.name == registration.name:
                if self.secure and old.node != registration.node and not self.left(old.node):
                    raise Refused(f"the name {registration.name!r} belongs to another key")
                old.node = registration.node
                self._renew(i, old, registration.sizes, registration.capacity)
                return
        free = [i for i, old in enumerate(self.registrations) if old is None]
        free += [i for i, old in enumerate(self.registrations) if not self.joining and old and self.left(old.node)][:1]
        if not free and not self.joining:
            raise Refused(f"{registration.name!r}: all {len(self.registrations)} client numbers are taken")
        i = free[0] if free else len(self.registrations)
        reason = self.admit(i, registration) if self.admit else None
        if reason is not None:
            raise Refused(f"{registration.name!r}: {reason}")
        before = self.registrations[i] if free else None
        registration.newcomer = self.joining
        self.registrations[i : i + 1] = [registration]
        self.save()
        place = f" in place of {before.name}, whose key was unregistered" if before else ""
        self.say(f"{registration.name} came later and is client {i}{place}")

    def _renew(self, client: int, old: Registration, sizes: Sizes, capacity: str) -> None:
        """Store changed numbers of rows and a changed capacity. The client's width stays until the next run."""
        if (old.sizes, old.capacity) == (sizes, capacity):
            return
        if old.sizes != sizes:
            self.say(f"{old.name} has {counted(sizes[0], 'training row')} now, before {old.sizes[0]}")
            self.recount(client, sizes)
        if old.capacity not in ("", capacity):
            self.say(f"{old.name} has capacity {capacity} now: in this run it keeps the width of {old.r}")
        old.sizes, old.capacity = sizes, capacity
        self.save()
