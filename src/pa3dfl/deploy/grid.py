"""Flower's grid, but an answer that is still being uploaded does not delay the others.

In Flower 1.41 `pull_messages` waits for the objects of every answer that has begun to arrive. If a node dies while it
uploads, that takes three minutes; a malicious node can make it hours. This grid fetches such an answer later.
"""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import httpx
from flwr.app import Message
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore import date
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
)
from flwr.superlink.grid import HttpGrid

PATIENCE_SECONDS = 60.0


@dataclass
class Arriving:
    """An answer, with the objects of it that have arrived."""

    message: MessageProto
    names: list[str]
    contents: dict[str, bytes] = field(default_factory=dict)

    @property
    def about(self) -> str:
        """The id of the message that it answers."""
        return str(self.message.metadata.reply_to_message_id)

    @property
    def expired(self) -> bool:
        return float(self.message.metadata.created_at + self.message.metadata.ttl) < date.now().timestamp()


class Patience:
    """Says when to give a request up. Flower does so at once when its server fails, as with a locked database."""

    def __init__(self, giveup: Callable[[Exception], bool]) -> None:
        self.giveup = giveup
        self._first = self._last = -math.inf

    def __call__(self, e: Exception) -> bool:
        if not isinstance(e, httpx.HTTPStatusError) or e.response.status_code != httpx.codes.INTERNAL_SERVER_ERROR:
            return self.giveup(e)
        now = time.monotonic()
        if now - self._last > PATIENCE_SECONDS:
            self._first = now
        self._last = now
        return now - self._first > PATIENCE_SECONDS


class PromptGrid(HttpGrid):
    def __init__(self, address: str, insecure: bool, root: bytes | None, *, token: str) -> None:
        super().__init__(address, insecure, root, token=token)
        self._retry_invoker.should_giveup = Patience(self._retry_invoker.should_giveup or (lambda e: True))
        self._arriving: list[Arriving] = []

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The complete answers to these messages."""
        wanted = set(message_ids)
        self._arriving = [a for a in self._arriving if a.about in wanted or not a.expired]
        # Flower hands out an answer once, and afterwards says that it is gone.
        if unknown := wanted - {a.about for a in self._arriving}:
            got = self._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=unknown))
            for message, tree in zip(got.messages_list, got.message_object_trees, strict=True):
                self._arriving.append(Arriving(message, [t.object_id for t in iterate_object_tree(tree)]))
        answers = []
        for one in [a for a in self._arriving if a.about in wanted]:
            try:
                self._fetch(one)
            except ObjectUnavailableError:
                continue
            except ObjectPullError:
                pass  # the upload was given up: from now on Flower says that this answer is gone
            else:
                answers.append(self._inflate(one))
            self._arriving.remove(one)
        return answers

    def _fetch(self, one: Arriving) -> None:
        fetch = make_pull_object_fn_protobuf(self._runtime_client.PullObject, self.node, self.run.run_id)
        for name in one.names:
            if name not in one.contents:
                one.contents[name] = fetch(name)

    def _inflate(self, one: Arriving) -> Message:
        name = str(one.message.metadata.message_id)
        received = ConfirmMessageReceivedRequest(node=self.node, run_id=self.run.run_id, message_object_id=name)
        self._runtime_client.ConfirmMessageReceived(received)
        message = inflate_object_from_contents(name, one.contents)
        assert isinstance(message, Message)
        message.metadata.__dict__["_message_id"] = name
        return message
