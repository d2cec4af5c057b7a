"""The guard before the SuperLink: who gets where, on the real app with a database, without a network."""

import asyncio
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pa3dfl[flower]'")

from cryptography.hazmat.primitives.asymmetric import ec
from fleet_requests import PROTOBUF, UNKNOWN, asked, private_key, routes, signed
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import Metadata
from flwr.supercore.auth import create_superexec_auth_metadata, derive_auth_secret
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from pa3dfl.core.errors import UserError
from pa3dfl.deploy.access import FORWARDED, AccessControl
from pa3dfl.deploy.control_client import public_key
from pa3dfl.deploy.executor import ACQUIRE
from pa3dfl.deploy.folder import DeploymentFolder
from pa3dfl.deploy.init import init
from pa3dfl.deploy.secret import new_secret, read_secret, write_secret
from pa3dfl.deploy.superlink import config_of, guarded

STRANGER, OURS = "203.0.113.9", "192.0.2.1"
SECRET = b"s" * 64


class Server:
    """A site's guarded app, and callers from anywhere."""

    def __init__(self, folder: Path, insecure: bool = False, proxies: tuple[str, ...] = ()) -> None:
        self.deployment = DeploymentFolder(folder / "site")
        init(self.deployment, 2, "127.0.0.1", 9093, insecure, {"method": "ditto"})
        self.guarded = guarded(config_of(self.deployment, SECRET, str(folder / "superlink.db")), list(proxies))
        self.app: Any = self.guarded.app
        self.token = self.deployment.read_token().decode()
        self.nodes: list[int] = []
        if not insecure:
            self.keys = [private_key(self.deployment.nodes / f"node-{i}" / "key") for i in range(2)]
            for i in range(2):
                key = public_key((self.deployment.keys / f"node-{i}.pub").read_bytes())
                self.nodes.append(self.app.state.linkstate_factory.state().create_node("<id:none>", "none", key, 0))

    def call(self, method: str, path: str, peer: str = STRANGER, ours: str = OURS, **given: Any) -> httpx.Response:
        async def go() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.guarded, client=(peer, 40000), raise_app_exceptions=False)  # type: ignore[arg-type]
            host = f"[{ours}]" if ":" in ours else ours
            async with httpx.AsyncClient(transport=transport, base_url=f"https://{host}:9093") as client:
                return await client.request(method, path, **given)

        return asyncio.run(go())

    def bearer(self, token: str | None = None) -> dict[str, str]:
        return PROTOBUF | {"authorization": f"Bearer {token or self.token}"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Server:
    return Server(tmp_path_factory.mktemp("access"))


def test_unregistered_callers_reach_nothing(server: Server) -> None:
    """Every route and unknown ones, with no key, the token, a wrong key, an old signature."""
    fleet = server.guarded.fleet
    brought = [
        PROTOBUF,
        server.bearer(),
        signed(ec.generate_private_key(ec.SECP384R1())),
        signed(server.keys[0], 400.0),
    ]
    fresh = signed(server.keys[0])[TIMESTAMP_HEADER]
    brought += [signed(server.keys[0], 60.0) | {TIMESTAMP_HEADER: stamp} for stamp in (fresh, "now", "")]
    for method, path in [*routes(server.app), *(("POST", p) for p in UNKNOWN), ("GET", "/v1/fleet/pull-messages")]:
        for headers in brought:
            answer = server.call(method, path, headers=headers)
            expected = (401, "no registered key") if method == "POST" and path in fleet else (403, "not served to")
            assert answer.status_code == expected[0], (method, path, headers)
            # In our words: Flower says no as well, but only when it has read the body.
            assert method == "HEAD" or expected[1] in answer.text
    assert len(fleet) == 12


def test_a_node_reaches_only_what_nodes_need(server: Server) -> None:
    """With a registered key, even with the token too: only the paths of the fleet, in its own name."""
    for method, path in [*routes(server.app), *(("POST", p) for p in UNKNOWN)]:
        if (method, path) not in {("POST", p) for p in server.guarded.fleet}:
            headers = signed(server.keys[0]) | {"authorization": f"Bearer {server.token}"}
            assert server.call(method, path, headers=headers).status_code == 403, (method, path)
            continue
        mine = public_key_to_bytes(server.keys[0].public_key())
        others = public_key_to_bytes(server.keys[1].public_key())
        stolen = asked(path, server.nodes[1], others).SerializeToString()
        assert server.call("POST", path, headers=signed(server.keys[0]), content=stolen).status_code == 401, path
        own = asked(path, server.nodes[0], mine).SerializeToString()
        answer = server.call("POST", path, headers=signed(server.keys[0]), content=own)
        assert answer.status_code not in (401,), (path, answer.text)
        if path.endswith(("/pull-messages", "/send-node-heartbeat", "/activate-node")):
            assert answer.status_code == 200, (path, answer.text)


def test_no_body_of_an_unregistered_caller_is_read(server: Server) -> None:
    async def never() -> Any:
        raise AssertionError("the body was read")

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/fleet/push-object", "headers": [], "server": (OURS, 9093)}
    asyncio.run(server.guarded(scope | {"client": (STRANGER, 1)}, never, send))
    assert sent[0]["status"] == 401
    assert (b"connection", b"close") in sent[0]["headers"]


def test_this_machine_needs_the_token_and_the_secret(server: Server) -> None:
    """Without a secret only harmless paths answer; each secret opens its own interface."""
    open_to_all = {"/health", "/docs", "/docs/oauth2-redirect", "/openapi.json", "/v1/control/get-login-details",
                   "/v1/control/get-auth-tokens"}  # fmt: skip
    for method, path in routes(server.app):
        for headers in (PROTOBUF, server.bearer("f" * 64), signed(ec.generate_private_key(ec.SECP384R1()))):
            content = asked(path, server.nodes[0]).SerializeToString()
            status = server.call(method, path, "127.0.0.1", headers=headers, content=content).status_code
            assert (status == 200) == (path in open_to_all), (method, path, status)
    assert server.call("POST", "/v1/control/list-nodes", "127.0.0.1", headers=server.bearer()).status_code == 200
    assert server.call("POST", "/v1/control/get-auth-tokens", "127.0.0.1", headers=PROTOBUF).content == b""
    task = "/v1/runtime/acquire-task"
    assert server.call("POST", task, "127.0.0.1", headers=server.bearer()).status_code == 401
    for secret, status in ((b"w" * 64, 401), (SECRET, 200)):
        extra = create_superexec_auth_metadata(
            auth_secret=derive_auth_secret(secret), method=ACQUIRE, request=asked(task)  # type: ignore[arg-type]
        )  # fmt: skip
        assert server.call("POST", task, "::1", headers=PROTOBUF | extra).status_code == status
    assert server.call("POST", task, "::1", headers=PROTOBUF | extra).status_code == 401, "replayed"


def test_a_node_cannot_reply_in_another_nodes_name(server: Server) -> None:
    """Flower compares a reply with its order, not with the key of its sender."""
    for source, refused in ((server.nodes[1], True), (server.nodes[0], False)):
        request = PushMessagesRequest()
        request.node.node_id = server.nodes[0]
        request.messages_list.append(ProtoMessage(metadata=Metadata(run_id=1, src_node_id=source)))
        content = request.SerializeToString()
        answer = server.call("POST", "/v1/fleet/push-messages", headers=signed(server.keys[0]), content=content)
        assert ("in the name of another node" in answer.text) is refused, answer.text


def test_without_keys_only_this_machine_is_served(tmp_path: Path) -> None:
    server = Server(tmp_path, insecure=True)
    for method, path in [*routes(server.app), *(("POST", p) for p in UNKNOWN)]:
        assert server.call(method, path, headers=server.bearer()).status_code == 403
    assert server.call("GET", "/health", "127.0.0.1").status_code == 200


async def _ok(scope: Any, receive: Any, send: Callable[[Any], Any]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def passed(headers: dict[str, str], peer: str, ours: str = OURS, proxies: tuple[str, ...] = ()) -> bool:
    raw = [(k.lower().encode(), v.encode()) for k, v in headers.items()]
    scope = {"type": "http", "method": "GET", "path": "/health", "headers": raw}
    control = AccessControl(_ok, ["/v1/fleet/pull-messages"], None, proxies)
    return control.local(scope | {"client": (peer, 1) if peer else None, "server": (ours, 9093)})


@pytest.mark.parametrize(
    ("peer", "ours", "local"),
    [
        ("127.0.0.1", "127.0.0.1", True), ("127.8.8.8", OURS, True), ("::1", "::1", True),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1", True), (OURS, OURS, True), ("2001:db8::1", "2001:db8::1", True),
        ("fe80::1%eth0", "fe80::1%eth0", True), (f"::ffff:{OURS}", OURS, True),
        (STRANGER, OURS, False), ("192.0.2.2", OURS, False), ("10.0.0.1", "127.0.0.1", False), ("", OURS, False),
        ("testclient", OURS, False), ("0.0.0.0", OURS, False), ("::ffff:203.0.113.9", OURS, False),
    ],
)  # fmt: skip
def test_callers_on_this_machine_by_address(peer: str, ours: str, local: bool) -> None:
    assert passed({}, peer, ours) is local


@pytest.mark.parametrize("name", [*sorted(FORWARDED), b"x-forwarded-for", b"X-Forwarded-Host", b"x-forwarded-anything"])
def test_forwarded_requests_count_as_from_other_machines(name: bytes) -> None:
    for value in ("127.0.0.1", "", STRANGER, "for=127.0.0.1"):
        assert not passed({name.decode(): value}, "127.0.0.1")


@pytest.mark.parametrize(
    ("said", "local"),
    [
        ("127.0.0.1", True), (OURS, True), (f"{STRANGER}, 127.0.0.1", True), ("127.0.0.1, 127.0.0.2", True),
        (STRANGER, False), (f"127.0.0.1, {STRANGER}", False), ("nonsense", False), ("", False), (None, False),
        ("127.0.0.1, nonsense", False), ("127.0.0.2", False),
    ],
)  # fmt: skip
def test_a_trusted_proxy_names_the_caller(said: str | None, local: bool) -> None:
    """Only the last address counts: the caller may have written those before it."""
    headers = {} if said is None else {"x-forwarded-for": said}
    assert passed(headers, "127.0.0.2", proxies=("127.0.0.2",)) is local
    assert not passed({"x-forwarded-for": "127.0.0.1"}, "127.0.0.3", proxies=("127.0.0.2",))
    assert not passed({"x-forwarded-for": "127.0.0.1"}, STRANGER, proxies=(STRANGER,)), "a proxy on another machine"


def test_secrets_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with pytest.raises(UserError, match=r"cannot be read .*: `pa3dfl deploy init site` makes one"):
        read_secret(file, "pa3dfl deploy init site")
    file.write_text("old and open to all")
    file.chmod(0o666)
    made = new_secret(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_secret(file, "x") == made
    assert new_secret(file) != made
    file.chmod(0o640)
    with pytest.raises(UserError, match=r"open to other users \(mode 640\): run `chmod 600"):
        read_secret(file, "x")
    write_secret(file, b"short\n")
    with pytest.raises(UserError, match="too short for a secret"):
        read_secret(file, "x")
