"""A client of Flower's control interface that sends the token of the deployment."""

import hashlib
import socket
import time
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
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.constant import NodeStatus
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.interceptors.http.utils import add_headers
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext

from pa3dfl.core.errors import UserError
from pa3dfl.deploy.app import BUNDLE
from pa3dfl.deploy.folder import DeploymentFolder, dial


class Bearer:
    """Interceptor that adds the token to every request."""

    def __init__(self, token: bytes) -> None:
        self.headers = {"authorization": f"Bearer {token.decode('latin-1')}"}

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        add_headers(context.request, self.headers)
        return call_next(context)


class ControlClient:
    def __init__(self, deployment: DeploymentFolder) -> None:
        self.deployment = deployment
        self.client = ControlHttpClient.from_server_address(
            server_address=deployment.address(),
            insecure=deployment.settings()["insecure"],
            root_certificates=deployment.root(),
            interceptors=[RuntimeVersionHttpInterceptor("pa3dfl"), Bearer(deployment.read_token())],
        )

    def close(self) -> None:
        self.client.close()

    def start(self, options: dict[str, Any]) -> int:
        """Start a training; return the id of its run."""
        app = fab_to_proto(Fab(hashlib.sha256(BUNDLE).hexdigest(), BUNDLE, {}))
        try:
            answer = self.client.StartRun(StartRunRequest(fab=app, override_config=user_config_to_proto(options)))
        except httpx.HTTPError as e:
            raise UserError(f"the training could not be started: {self.reason(e)}") from None
        return int(answer.run_id)

    def nodes(self) -> tuple[dict[bytes, int], set[bytes]]:
        """The ids of registered nodes by public key, and the public keys of unregistered nodes."""
        found = self._list()
        unregistered = {n.public_key for n in found if n.status == NodeStatus.UNREGISTERED}
        return {n.public_key: n.node_id for n in found if n.public_key not in unregistered}, unregistered

    def list_nodes(self) -> list[NodeInfo]:
        """The registered nodes."""
        return [n for n in self._list() if n.status != NodeStatus.UNREGISTERED]

    def _list(self) -> list[NodeInfo]:
        try:
            return list(self.client.ListNodes(ListNodesRequest()).nodes_info)
        except httpx.HTTPError as e:
            raise UserError(self.reason(e)) from None

    def register(self, key: bytes) -> None:
        try:
            self.client.RegisterNode(RegisterNodeRequest(public_key=key))
        except httpx.HTTPError as e:
            raise UserError(f"the server refused to register a key: {self.reason(e)}") from None

    def unregister(self, node: int) -> None:
        try:
            self.client.UnregisterNode(UnregisterNodeRequest(node_id=node))
        except httpx.HTTPError as e:
            raise UserError(f"the server refused to unregister a key: {self.reason(e)}") from None

    def status(self, run: int) -> str | None:
        """The status of a run; None if the server does not answer."""
        try:
            found = self.client.ListRuns(ListRunsRequest(run_id=run)).run_dict
        except httpx.HTTPError:
            return None
        return (
            ":".join(filter(None, (found[run].status.status, found[run].status.sub_status))) if run in found else None
        )

    def reason(self, e: httpx.HTTPError) -> str:
        if not isinstance(e, httpx.HTTPStatusError):
            return f"{self.deployment.address()} does not answer ({e})"
        if e.response.status_code == 401:
            return f"the server knows another token than {self.deployment.token}: restart it, or use its folder"
        if e.response.status_code == 403:
            return f"{self.deployment.address()} serves this command only on its own machine: run it there"
        return " ".join(e.response.text.split())[:300] or f"status {e.response.status_code}"


def public_key(key: bytes) -> bytes:
    """Convert a public key from the format of ssh-keygen to that of Flower."""
    try:
        found = load_ssh_public_key(key)
    except (ValueError, UnsupportedAlgorithm) as e:
        raise UserError(f"not a public key: {e}") from None
    if not isinstance(found, ec.EllipticCurvePublicKey):
        raise UserError("not a NIST elliptic-curve key: make one with ssh-keygen -t ecdsa -b 384")
    return public_key_to_bytes(found)


def server_answers(deployment: DeploymentFolder) -> bool:
    settings = deployment.settings()
    with socket.socket() as s:
        s.settimeout(1)
        return s.connect_ex((dial(str(settings["host"])), int(settings["port"]))) == 0


def wait_for_server(deployment: DeploymentFolder, patience: float) -> None:
    deadline = time.monotonic() + patience
    while not server_answers(deployment):
        if time.monotonic() > deadline:
            place = deployment.address()
            raise UserError(f"no server at {place}: start it with `pa3dfl deploy server {deployment.path}`")
        time.sleep(0.2)
