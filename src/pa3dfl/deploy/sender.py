"""Refuses replies that a node sends in another node's name.

Flower 1.41 verifies the key of the sender but not that the reply names the same node. Without this check, a registered
node that guesses the id of another node's message could answer it.
"""

from typing import Any

from flwr.proto.fleet_pb2 import PushMessagesRequest

from pa3dfl.deploy.access import App, Receive, Scope, Send, refuse


class OwnRepliesOnly:
    """The innermost middleware: Flower has already parsed the request and verified the key of its `node`."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = scope.get("state", {}).get("protobuf_request")
        if isinstance(request, PushMessagesRequest) and not own(request):
            await refuse(send, 403, "a reply in the name of another node")
        else:
            await self.app(scope, receive, send)


def own(request: Any) -> bool:
    return all(m.metadata.src_node_id == request.node.node_id for m in request.messages_list)
