"""The part of Flower's grid that every grid in this process has: it takes messages, and hands them out again."""

from collections.abc import Iterable, Iterator
from itertools import count

from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity


class Postbox:
    def __init__(self) -> None:
        self._mail: dict[str, Message] = {}
        self._numbers = count(1)
        # A message carries them; in a running app Flower sets them.
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            ids.append(str(next(self._numbers)))
            message.metadata.__dict__["_message_id"] = ids[-1]
            self._mail[ids[-1]] = message
        return ids

    def sent(self, ids: Iterable[str]) -> Iterator[Message]:
        """The last one first: the order of replies must not matter."""
        return (self._mail[i] for i in sorted(ids, key=int, reverse=True))
