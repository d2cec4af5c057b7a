"""Corrections of Flower's database: messages that nobody will answer or fetch any more, and nodes that seem present.

Flower 1.41 keeps messages and the objects that they carry until the run ends: every model that was sent to a node that
died would stay in the database.
"""

import time
from collections.abc import Callable
from typing import Any

from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, HEARTBEAT_PATIENCE
from flwr.supercore.date import now
from flwr.supercore.state.schema.corestate_models import ObjectPushSession
from flwr.supercore.state.schema.linkstate_models import MessageIns, MessageRes, Node
from sqlalchemy import select, update
from sqlalchemy.exc import SQLAlchemyError

from pa3dfl.core.logging import log

SECONDS = 30.0
# The server's program asks for an answer until the message expires, and a little longer.
GRACE_SECONDS = 60.0
AT_ONCE = 1000


def expire_presence(state: Any) -> None:
    """At the start of the server. Flower refuses a node that comes back while it is marked as present; if the clock was
    ahead before, that would be for hours."""
    latest = now().timestamp() + HEARTBEAT_PATIENCE * HEARTBEAT_DEFAULT_INTERVAL
    with state.session() as session:
        session.execute(update(Node).where(Node.online_until > latest).values(online_until=latest))


def sweep(state: Any, grace: float = GRACE_SECONDS) -> None:
    """`state`: Flower's SqlLinkState."""
    with state.session() as session:
        expired = MessageIns.created_at + MessageIns.ttl < now().timestamp() - grace
        asked = set(session.scalars(select(MessageIns.message_id).where(expired).limit(AT_ONCE)))
        answers = select(MessageRes.message_id).where(MessageRes.reply_to_message_id.in_(asked))
        names = asked | set(session.scalars(answers))
        state.delete_messages(asked)
        for name in names:
            state.object_store.delete(name)
        # Uploads whose sender has died.
        stalled = select(ObjectPushSession.session_id).where(ObjectPushSession.expires_at < now()).limit(AT_ONCE)
        for upload in list(session.scalars(stalled)):
            state._cleanup_push_session(upload, cleanup_messages=True)


def sweep_forever(state: Callable[[], Any]) -> None:
    while True:
        time.sleep(SECONDS)
        try:
            sweep(state())
        except SQLAlchemyError as e:  # a full disk, for example
            log.warning(f"expired messages could not be deleted: {' '.join(str(e).split())[:200]}")
