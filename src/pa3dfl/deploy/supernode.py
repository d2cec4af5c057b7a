"""Flower's SuperNode in a process that ends when the SuperNode fails: `python supernode.py …`.

If the server refuses a request because of its time, the request is signed again with the server's time.

In Flower 1.41 the process stays alive without doing anything if an error occurs after the first connection. This file
does not import PyTorch, which would take memory.
"""

import os
import sys
import traceback
from pathlib import Path
from typing import Any

import httpx
from flwr.supernode import fleet_http_connection
from flwr.supernode.cli.flower_supernode import flower_supernode
from flwr.supernode.fleet_http_client import FleetHttpClient

from pa3dfl.core.logging import log, show_messages
from pa3dfl.deploy.clock import Clock
from pa3dfl.deploy.heartbeat import PatientHeartbeat


def following(clock: Clock) -> type[FleetHttpClient]:
    class Following(FleetHttpClient):
        def _unary_unary(self, **request: Any) -> Any:
            try:
                return super()._unary_unary(**request)
            except httpx.HTTPStatusError as e:
                refused = e.response.status_code == httpx.codes.UNAUTHORIZED
                if not refused or not clock.follow(e.response.headers.get("date", "")):
                    raise
            except httpx.ConnectError as e:
                if any(why in str(e) for why in ("not yet valid", "has expired")):
                    log.warning(
                        "by this machine's clock the server's certificate is not valid: set the clock, or renew it"
                    )
                raise
            return super()._unary_unary(**request)

    return Following


if __name__ == "__main__":
    code: object = 1
    try:
        show_messages()
        clock = Clock(Path(os.environ["FLWR_HOME"])).start().use()
        fleet_http_connection.FleetHttpClient = following(clock)  # type: ignore[attr-defined]
        fleet_http_connection.HeartbeatSender = PatientHeartbeat  # type: ignore[attr-defined]
        flower_supernode()
    except SystemExit as e:
        code = e.code
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)
