"""Runs one task with the installed pa3dfl: a node's reply to a message, or a training on the server.

Of the app that came with the task, only the hash is compared; it is not unpacked.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.common.serde import context_from_proto, run_from_proto
from flwr.proto.runtime_pb2 import PullTaskInputRequest, PushTaskOutputRequest
from flwr.proto.task_pb2 import Task
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import make_task_heartbeat_fn_http
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message

from pa3dfl.core.errors import UserError
from pa3dfl.core.logging import log
from pa3dfl.deploy import app
from pa3dfl.deploy.folder import DeploymentFolder
from pa3dfl.deploy.grid import PromptGrid
from pa3dfl.deploy.heartbeat import PatientHeartbeat


@dataclass(frozen=True)
class Link:
    """A SuperNode on this machine, or the SuperLink."""

    address: str
    root: bytes | None = None

    def client(self, name: str, *interceptors: ProtobufClientInterceptor) -> RuntimeHttpClient:
        return RuntimeHttpClient.from_server_address(
            server_address=self.address,
            insecure=self.root is None,
            root_certificates=self.root,
            interceptors=[RuntimeVersionHttpInterceptor(name), *interceptors],
        )


def reply(link: Link, token: str, task: Task) -> None:
    """Run a task on a node. The SuperNode waits for an answer, so a refusal is sent as one."""
    client = link.client("flwr-clientapp", RuntimeTokenHttpInterceptor(token))
    with reported(client):
        message, context, _, _ = pull_task_input(client)
        reason = refusal(task, TaskType.CLIENT_APP)
        if reason is not None:
            push_message(client, Message(Error(ErrorCode.INVALID_FAB, reason), reply_to=message), context)
            raise UserError(reason)
        from pa3dfl.deploy.node import on_message

        try:
            answer = on_message(message, context)
        except Exception as e:
            error = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"{type(e).__name__}: {e}")
            push_message(client, Message(error, reply_to=message), context)
            raise
        push_message(client, answer, context)


def lead(deployment: DeploymentFolder, link: Link, token: str, task: Task) -> None:
    """Run a task on the server: the training of this deployment, regardless of the folder that the run names."""
    grid = PromptGrid(link.address, link.root is None, link.root, token=token)
    client = grid._runtime_client
    with reported(client):
        reason = refusal(task, TaskType.SERVER_APP)
        if reason is not None:
            raise UserError(reason)
        given = client.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id, TaskIdentity.run_id = given.task_id, given.run.run_id
        TaskIdentity.node_id = given.context.node_id
        run, context = run_from_proto(given.run), context_from_proto(given.context)
        grid.set_run(run)
        context.run_config = app.DEFAULTS | run.override_config | {"folder": str(deployment.path)}
        from pa3dfl.deploy.server import serve

        serve(grid, context)


def refusal(task: Task, ours: TaskType) -> str | None:
    if task.type != ours:
        return f"a task of type {task.type[:40]!r} was refused: only {str(ours)!r} is run here"
    return app.foreign(task.fab_hash)


@contextmanager
def reported(client: RuntimeHttpClient) -> Iterator[None]:
    """Send Flower heartbeats during the task, and its status at the end."""
    heart = PatientHeartbeat(make_task_heartbeat_fn_http(client))
    heart.start()
    status, details = SubStatus.FAILED, "stopped"
    try:
        yield
        status, details = SubStatus.COMPLETED, ""
    except BaseException as e:
        details = f"{type(e).__name__}: {e}"
        raise
    finally:
        # A heartbeat after the end would interrupt this process.
        if heart.is_running:
            heart.stop()
        try:
            client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=details))
        except Exception as e:  # the server is gone; the error of the task itself matters more
            log.warning(f"the status of a task could not be sent to Flower: {e}")
