"""The executor: takes tasks from Flower and runs each in a fork of this process, which has PyTorch loaded.

`python -m pa3dfl.deploy.executor node ADDRESS SECRET` or `… server FOLDER SECRET`. Flower's own executor would unpack
and run the app that it received. This executor runs the installed pa3dfl only.
"""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import httpx
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.proto.task_pb2 import Task
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import SuperExecAuthHttpInterceptor

from pa3dfl.core.errors import UserError
from pa3dfl.core.logging import log, show_messages
from pa3dfl.deploy.clock import Clock
from pa3dfl.deploy.folder import DeploymentFolder
from pa3dfl.deploy.secret import read_secret
from pa3dfl.deploy.supervisor import die_with_parent
from pa3dfl.deploy.task_runner import Link, lead, reply

POLL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"
POLL_SECONDS = 0.25
REFUSALS = 3
ACQUIRE = "/flwr.proto.Runtime/AcquireTask"

Work = Callable[[Link, str, Task], None]


def run(link: Link, secret: bytes, work: Work) -> None:
    """Run tasks forever, each in a process of its own, which frees its memory when it ends."""
    interval = poll_seconds()
    # Accept all types: a task of an unknown type is refused instead of waiting forever.
    wanted = AcquireTaskRequest(supported_task_types=list(TaskType))
    signed = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=[ACQUIRE])
    client = link.client("SuperExec", signed)
    refused = 0
    while True:
        reap()
        try:
            got = client.AcquireTask(wanted)
        except httpx.TransportError:  # not started yet, or restarting
            time.sleep(interval)
            continue
        except httpx.HTTPStatusError as e:
            # The disk may be full, or the clock was set after the request was signed: a running task must not end here.
            refused += not e.response.is_server_error
            if refused < REFUSALS:
                time.sleep(interval)
                continue
            raise UserError(f"{link.address} refused the executor ({e.response.status_code}): restart both") from None
        refused = 0
        if got.token:
            fork(lambda: work(link, got.token, got.task))  # noqa: B023  (runs at once)
        else:
            time.sleep(interval)


def fork(work: Callable[[], None]) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    if os.fork():
        return
    code = 1
    try:
        die_with_parent()
        work()
        code = 0
    except KeyboardInterrupt:  # Flower stops a task with this signal
        pass
    except UserError as e:
        log.error(str(e))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def reap() -> None:
    """Collect processes that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def poll_seconds() -> float:
    text = os.environ.get(POLL, str(POLL_SECONDS))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.01 <= seconds <= 60:
        raise UserError(f"{POLL} is {text!r}: expected seconds from 0.01 to 60")
    return seconds


def main(role: str, where: str, secret: str) -> None:
    show_messages()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    Clock(Path(secret).parent).use()
    # Import what tasks need before the first fork.
    if role == "node":
        import pa3dfl.deploy.node

        run(Link(where), read_secret(Path(secret), "pa3dfl deploy node"), reply)
    else:
        import pa3dfl.deploy.server  # noqa: F401

        deployment = DeploymentFolder(Path(where))
        run(
            Link(deployment.address(), deployment.root()),
            read_secret(Path(secret), "pa3dfl deploy server"),
            lambda *task: lead(deployment, *task),
        )


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except UserError as e:
        sys.exit(f"pa3dfl: {e}")
    except KeyboardInterrupt:
        pass
