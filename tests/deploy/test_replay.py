"""Replayed, reordered and misaddressed messages on the real server app: each order has one answer, its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pa3dfl[flower]'")

from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto, run_from_proto
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, no_object_id_recompute
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from starlette.testclient import TestClient, httpx
from test_access import SECRET, STRANGER, Server

from pa3dfl.deploy.app import BUNDLE
from pa3dfl.deploy.executor import ACQUIRE
from pa3dfl.deploy.grid import Patience, PromptGrid
from pa3dfl.deploy.sweep import sweep
from pa3dfl.engines.flower.engine import content, record


class Speaker:
    """A node that sends any requests, signed with its own key."""

    def __init__(self, server: Server, i: int) -> None:
        key = server.keys[i]
        self.node, self.other = Node(node_id=server.nodes[i]), server.nodes[1 - i]
        self.client = FleetHttpClient(
            "https://192.0.2.1:9093", interceptors=[NodeAuthHttpInterceptor(key, key.public_key())]
        )
        self.left: list[PushObjectRequest] = []
        self.client._client = TestClient(server.guarded, "https://192.0.2.1:9093", client=(STRANGER, 50000))  # type: ignore[assignment]
        public = public_key_to_bytes(key.public_key())
        self.client.ActivateNode(ActivateNodeRequest(public_key=public, heartbeat_interval=30.0))

    def pull(self) -> Message | None:
        got = self.client.PullMessages(PullMessagesRequest(node=self.node))
        if not got.messages_list:
            return None
        order = message_from_proto(got.messages_list[0])
        order.metadata.__dict__["_message_id"] = got.messages_list[0].metadata.message_id
        return order

    def push(self, order: Message, text: str, name: int | None = None, upto: int | None = None) -> Message:
        TaskIdentity.node_id = name or self.node.node_id
        order.metadata.__dict__["_dst_node_id"] = TaskIdentity.node_id
        reply = Message(record({"said": text}, b""), reply_to=order)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        self.push_again(reply, upto)
        return reply

    def push_again(self, reply: Message, upto: int | None = None) -> None:
        """`upto`: how many objects are uploaded at once; `upload` goes on."""
        with no_object_id_recompute():
            request = PushMessagesRequest(node=self.node, clientapp_runtime_list=[0.1])
            request.messages_list.append(message_to_proto(remove_content_from_message(reply)))
            request.message_object_trees.append(get_object_tree(reply))
            got = self.client.PushMessages(request)
            self.left = []
            for name, thing in get_all_nested_objects(reply).items():
                if name in got.objects_to_push:
                    pushed = PushObjectRequest(node=self.node, run_id=reply.metadata.run_id, object_id=name)
                    pushed.object_content, pushed.session_id = thing.deflate(), got.session_id
                    self.left.append(pushed)
            self.upload(upto)

    def upload(self, upto: int | None = None) -> None:
        while self.left and upto != 0:
            self.client.PushObject(self.left.pop(0))
            upto = None if upto is None else upto - 1


class Leader:
    """The server's side of a run that was started with the token."""

    def __init__(self, server: Server) -> None:
        local = TestClient(server.guarded, "https://127.0.0.1:9093", client=("127.0.0.1", 50001))

        def client(*interceptors: Any) -> RuntimeHttpClient:
            made = RuntimeHttpClient("https://127.0.0.1:9093", interceptors=interceptors)
            made._client = local  # type: ignore[assignment]
            return made

        from flwr.common.serde import fab_to_proto
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.supercore.fab import Fab

        start = StartRunRequest(fab=fab_to_proto(Fab("", BUNDLE, {}))).SerializeToString()
        assert local.post("/v1/control/start-run", headers=server.bearer(), content=start).status_code == 200
        signed = SuperExecAuthHttpInterceptor(master_secret=SECRET, protected_methods=[ACQUIRE])
        got = client(signed).AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
        self.grid = PromptGrid("127.0.0.1:9093", True, None, token=got.token)
        self.grid._client = client(RuntimeTokenHttpInterceptor(got.token))
        given = self.grid._client.PullTaskInput(PullTaskInputRequest())
        self.ids = given.task_id, given.run.run_id, given.context.node_id
        self.grid.set_run(run_from_proto(given.run))

    def ask(self, node: int, text: str, ttl: float | None = None) -> str:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = self.ids
        [number] = self.grid.push_messages([Message(record({"asked": text}, b""), node, "query", ttl=ttl)])
        return number

    def answers(self, *numbers: str) -> dict[str, str]:
        """Only answers: of what was answered before, Flower says that it is gone."""
        found = [m for m in self.grid.pull_messages(numbers) if not m.has_error()]
        return {m.metadata.reply_to_message_id: content(m)[0]["said"] for m in found}


@contextmanager
def refused() -> Iterator[None]:
    with pytest.raises(httpx.HTTPStatusError) as caught:
        yield
    assert caught.value.response.status_code in (401, 403, 412, 400)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Server:
    return Server(tmp_path_factory.mktemp("replay"))


@pytest.fixture(scope="module")
def nodes(server: Server) -> tuple[Speaker, Speaker]:
    return Speaker(server, 0), Speaker(server, 1)


def test_every_order_accepts_one_answer(server: Server, nodes: tuple[Speaker, Speaker]) -> None:
    (a, b), leader = nodes, Leader(server)
    first, second = leader.ask(a.node.node_id, "1"), leader.ask(a.node.node_id, "2")
    theirs = leader.ask(b.node.node_id, "3")
    one, two = a.pull(), a.pull()
    assert one is not None
    assert two is not None
    assert a.pull() is None, "an order is handed out once"
    with refused():
        a.client.PullMessages(PullMessagesRequest(node=Node(node_id=b.node.node_id)))

    # Reordered: the answer to the second order comes first, and each finds its own.
    reply_two = a.push(two, "two")
    assert leader.answers(first, second) == {second: "two"}
    reply_one = a.push(one, "one")
    # Replayed: the same again, another answer to the same order, an answer to what was answered and forgotten.
    a.push_again(reply_one)
    a.push(one, "one, changed")
    assert leader.answers(first, second) == {first: "one"}
    for again in (reply_one, reply_two):
        a.push_again(again)
    assert leader.answers(first, second) == {}

    # Misaddressed: an answer in another's name, or to another's order.
    order = b.pull()
    assert order is not None
    with refused():
        a.push(order, "stolen", name=b.node.node_id)
    a.push(order, "strange")
    assert leader.answers(theirs) == {}
    b.push(order, "three")
    assert leader.answers(theirs) == {theirs: "three"}


def test_an_answer_from_an_earlier_run_is_refused(server: Server, nodes: tuple[Speaker, Speaker]) -> None:
    a, old = nodes[0], Leader(server)
    asked = old.ask(a.node.node_id, "old")
    order = a.pull()
    assert order is not None
    new = Leader(server)
    fresh = new.ask(a.node.node_id, "new")
    reply = a.push(order, "to the old one")
    assert new.answers(fresh) == {}
    assert old.answers(asked) == {asked: "to the old one"}
    a.push_again(reply)
    assert new.answers(fresh) == {}


@pytest.mark.timeout(60)
def test_a_node_that_dies_while_it_uploads_does_not_delay_the_others(
    server: Server, nodes: tuple[Speaker, Speaker]
) -> None:
    (a, b), leader = nodes, Leader(server)
    while a.pull():  # what earlier tests left
        pass
    first, second = leader.ask(a.node.node_id, "1"), leader.ask(b.node.node_id, "2")
    order, other = a.pull(), b.pull()
    assert order is not None
    assert other is not None
    a.push(order, "one", upto=1)
    assert leader.answers(first, second) == {}
    b.push(other, "two")
    assert leader.answers(first, second) == {second: "two"}
    assert leader.answers(first) == {}
    a.upload()  # it was alive after all
    assert leader.answers(first) == {first: "one"}


def test_expired_messages_are_deleted(server: Server, nodes: tuple[Speaker, Speaker]) -> None:
    """Orders and an answer that nobody fetched are deleted once they have expired."""
    (a, b), leader = nodes, Leader(server)
    state = server.app.state.linkstate_factory.state()
    sweep(state, grace=-1e9)
    before = stored(state)
    for text in "12":
        leader.ask(a.node.node_id, text, ttl=60)
    leader.ask(b.node.node_id, "3", ttl=60)
    order = b.pull()
    assert order is not None
    b.push(order, "nobody fetches this")
    assert stored(state) > before
    now = stored(state)
    sweep(state)
    assert stored(state) == now
    sweep(state, grace=-1e9)
    assert stored(state) == before


def stored(state: Any) -> int:
    return len(state.object_store)


def test_requests_are_repeated_while_the_server_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    import httpx

    def failed(status: int) -> httpx.HTTPStatusError:
        return httpx.HTTPStatusError("", request=httpx.Request("POST", "/"), response=httpx.Response(status))

    now = [100.0]
    monkeypatch.setattr("pa3dfl.deploy.grid.time.monotonic", lambda: now[0])
    giveup = Patience(lambda e: True)
    assert giveup(failed(404))
    for now[0] in (100.0, 130.0, 160.0):
        assert not giveup(failed(500))
    now[0] = 161.0
    assert giveup(failed(500))
    now[0] = 300.0
    assert not giveup(failed(500)), "another failure, later"
