"""Heartbeats that outlast errors of the server.

In Flower 1.41 the thread that sends them ends for good when the server answers 500, as with a full disk or a locked
database: then a node or a training that lives counts as gone. Delete this file when it asks again by itself.
"""

import httpx
from flwr.supercore.heartbeat import HeartbeatFailure, HeartbeatSender


class PatientHeartbeat(HeartbeatSender):
    def _heartbeat(self) -> None:
        try:
            super()._heartbeat()
        except httpx.HTTPStatusError as e:
            if e.response.is_server_error:
                raise HeartbeatFailure from None  # it is sent again, after a while
            raise
