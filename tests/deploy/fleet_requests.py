"""Requests to a SuperLink, as nodes and unregistered callers make them."""

from base64 import b64encode
from datetime import timedelta
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.proto.runtime_pb2 import GetNodesRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from google.protobuf.message import Message

PROTOBUF = {"content-type": PROTOBUF_MEDIA_TYPE}
UNKNOWN = ("/", "/v1", "/v1/fleet", "/v1/fleet/", "/v1/fleet/nothing", "/v1/fleet/../control/start-run", "/v1/control/",
           "/v1/FLEET/pull-messages", "/v1/fleet//pull-messages", "/admin", "/v2/fleet/pull-messages")  # fmt: skip


def routes(app: FastAPI) -> list[tuple[str, str]]:
    """Every method and path that the app knows."""
    found = {(m, c.route.path) for c in iter_route_contexts(app.routes) for m in c.route.methods}  # type: ignore[attr-defined]
    assert len(found) > 70
    return sorted(found)


def private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = load_ssh_private_key(path.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def signed(key: ec.EllipticCurvePrivateKey, age: float = 0.0) -> dict[str, str]:
    stamp = (now() - timedelta(seconds=age)).isoformat()
    return PROTOBUF | {
        FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(public_key_to_bytes(key.public_key())).decode(),
        FLEET_HTTP_SIGNATURE_HEADER: b64encode(sign_message(key, stamp.encode("ascii"))).decode(),
        TIMESTAMP_HEADER: stamp,
    }


def asked(path: str, node: int = 0, key: bytes = b"") -> Message:
    """An otherwise empty request to this path in the name of a node."""
    request: Any = PROTOBUF_REQUEST_TYPES.get(("POST", path), GetNodesRequest)()
    fields = {f.name for f in request.DESCRIPTOR.fields}
    if "node" in fields:
        request.node.node_id = node
    if "node_id" in fields:
        request.node_id = node
    if "public_key" in fields:
        request.public_key = key
    if "heartbeat_interval" in fields:
        request.heartbeat_interval = 30.0
    found: Message = request
    return found
