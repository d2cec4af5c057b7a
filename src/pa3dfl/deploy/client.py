"""Flower's control interface, asked with the token of the site."""

import hashlib
from typing import Any

import httpx
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    UnregisterNodeRequest,
)
from flwr.supercore.constant import NodeStatus
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.interceptors.http.utils import add_headers
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext

from pa3dfl.core.errors import UserError
from pa3dfl.deploy.app import BUNDLE
from pa3dfl.deploy.site import Site


class Bearer:
    """Adds the token to every request."""

    def __init__(self, token: bytes) -> None:
        self.headers = {"authorization": f"Bearer {token.decode('latin-1')}"}

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        add_headers(context.request, self.headers)
        return call_next(context)


class Control:
    def __init__(self, site: Site) -> None:
        self.site = site
        self.client = ControlHttpClient.from_server_address(
            server_address=site.address(),
            insecure=site.settings()["insecure"],
            root_certificates=site.root(),
            interceptors=[RuntimeVersionHttpInterceptor("pa3dfl"), Bearer(site.read_token())],
        )

    def start(self, options: dict[str, Any]) -> int:
        """Start a training; returns the number of its run."""
        app = fab_to_proto(Fab(hashlib.sha256(BUNDLE).hexdigest(), BUNDLE, {}))
        try:
            answer = self.client.StartRun(StartRunRequest(fab=app, override_config=user_config_to_proto(options)))
        except httpx.HTTPError as e:
            raise UserError(f"the training could not be started: {self.reason(e)}") from None
        return int(answer.run_id)

    def nodes(self) -> tuple[dict[bytes, int], set[bytes]]:
        """Those that may come in, by their keys, with Flower's numbers; and the keys of those that were turned out."""
        try:
            found = self.client.ListNodes(ListNodesRequest()).nodes_info
        except httpx.HTTPError as e:
            raise UserError(self.reason(e)) from None
        out = {n.public_key for n in found if n.status == NodeStatus.UNREGISTERED}
        return {n.public_key: n.node_id for n in found if n.public_key not in out}, out

    def register(self, key: bytes) -> None:
        try:
            self.client.RegisterNode(RegisterNodeRequest(public_key=key))
        except httpx.HTTPError as e:
            raise UserError(f"the server does not take a key: {self.reason(e)}") from None

    def unregister(self, node: int) -> None:
        try:
            self.client.UnregisterNode(UnregisterNodeRequest(node_id=node))
        except httpx.HTTPError as e:
            raise UserError(f"the server does not let go of a key: {self.reason(e)}") from None

    def status(self, run: int) -> str | None:
        """How Flower says that a run stands; None if the server is gone."""
        try:
            found = self.client.ListRuns(ListRunsRequest(run_id=run)).run_dict
        except httpx.HTTPError:
            return None
        return (
            ":".join(filter(None, (found[run].status.status, found[run].status.sub_status))) if run in found else None
        )

    def reason(self, e: httpx.HTTPError) -> str:
        if not isinstance(e, httpx.HTTPStatusError):
            return f"{self.site.address()} does not answer ({e})"
        if e.response.status_code == 401:
            return f"the server knows another token than {self.site.token}: start it again, or use its folder"
        if e.response.status_code == 403:
            return f"{self.site.address()} does not take us for this machine: run this command where the server is"
        return " ".join(e.response.text.split())[:300] or f"status {e.response.status_code}"


def public_key(key: bytes) -> bytes:
    """As Flower wants it, from the line that ssh-keygen writes."""
    try:
        found = load_ssh_public_key(key)
    except (ValueError, UnsupportedAlgorithm) as e:
        raise UserError(f"not a public key: {e}") from None
    if not isinstance(found, ec.EllipticCurvePublicKey):
        raise UserError("not a key on an elliptic curve of NIST: say ssh-keygen -t ecdsa -b 384")
    return public_key_to_bytes(found)
