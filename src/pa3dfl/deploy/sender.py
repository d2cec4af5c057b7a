"""A node speaks for itself: Flower 1.41 checks whose key came with a reply, but not that the reply names the same node.

Without this a registered node that guesses the number of another's order could answer in its place.
"""

from typing import Any

from flwr.proto.fleet_pb2 import PushMessagesRequest

from pa3dfl.deploy.door import App, Receive, Scope, Send, refuse


class OwnRepliesOnly:
    """Innermost: by now Flower has read the request and knows that the key is that of `node`."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        said = scope.get("state", {}).get("protobuf_request")
        if isinstance(said, PushMessagesRequest) and not own(said):
            await refuse(send, 403, "a reply in the name of another node")
        else:
            await self.app(scope, receive, send)


def own(request: Any) -> bool:
    return all(m.metadata.src_node_id == request.node.node_id for m in request.messages_list)
