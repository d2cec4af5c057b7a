"""Flower's SuperLink with access control, in this process.

`python -m pa3dfl.deploy.superlink FOLDER [PORT FOR METRICS]`
"""

import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from flwr.common.constant import ISOLATION_MODE_PROCESS, TRANSPORT_TYPE_GRPC_RERE
from flwr.supercore import sql_mixin
from flwr.supercore.http_logging import get_uvicorn_log_config
from flwr.supercore.logger import console_handler
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
from flwr.superlink.config_loader import SuperLinkLifespanConfig
from flwr.superlink.main import create_app
from starlette.middleware import Middleware

from pa3dfl.core.errors import UserError
from pa3dfl.core.logging import show_messages
from pa3dfl.deploy.access import FLEET, AccessControl
from pa3dfl.deploy.authn import TokenAuthn
from pa3dfl.deploy.clock import Clock, Dated
from pa3dfl.deploy.clock import make as make_clock
from pa3dfl.deploy.folder import DeploymentFolder
from pa3dfl.deploy.keys import key_known
from pa3dfl.deploy.metrics import serve_metrics
from pa3dfl.deploy.secret import new_secret
from pa3dfl.deploy.sender import OwnRepliesOnly
from pa3dfl.deploy.supervisor import die_with_parent, supervised
from pa3dfl.deploy.sweep import expire_presence, sweep_forever


def config_of(deployment: DeploymentFolder, secret: bytes, database: str) -> SuperLinkLifespanConfig:
    settings, files = deployment.settings(), deployment.certificates.resolve()
    secure = not settings["insecure"]
    ca, crt, key = (files / name for name in ("ca.crt", "server.crt", "server.key"))
    for path in (ca, crt, key):
        if secure and not path.exists():
            raise UserError(f"{path} is missing: put it there, or make another deployment with `pa3dfl deploy init`")
    return SuperLinkLifespanConfig(
        host=str(settings["host"]),
        port=int(settings["port"]),
        insecure=not secure,
        certificates=(ca.read_bytes(), crt.read_bytes(), key.read_bytes()) if secure else None,
        ssl_ca_certfile=str(ca) if secure else None,
        ssl_certfile=str(crt) if secure else None,
        ssl_keyfile=str(key) if secure else None,
        authn_plugin=TokenAuthn(deployment.read_token()),
        superexec_auth_secret=secret,
        enable_supernode_auth=secure,
        isolation=ISOLATION_MODE_PROCESS,
        runtime_dependency_install=False,
        database=database,
        # The following fields are not used.
        control_address="",
        fleet_api_type=TRANSPORT_TYPE_GRPC_RERE,
        fleet_api_address=None,
        health_server_address=None,
        event_log_plugin=None,
        fleet_event_log_plugin=None,
        enable_event_log=False,
        artifact_provider=None,
        simulation=False,
    )


def guarded(config: SuperLinkLifespanConfig, proxies: list[str]) -> AccessControl:
    app = create_app(config, SuperLinkLifespan)
    app.user_middleware.append(Middleware(OwnRepliesOnly))
    state = app.state.linkstate_factory.state
    known = partial(key_known, state) if config.enable_supernode_auth else None
    return AccessControl(app, fleet_paths(app), known, proxies)


def fleet_paths(app: Any) -> list[str]:
    return [path for path in app.openapi()["paths"] if path.startswith(FLEET)]


def run(deployment: DeploymentFolder, metrics_port: int | None = None) -> None:
    # The database holds the tokens of running tasks: other users must not read it.
    umask = os.umask(0o077)
    # How long SQLite waits for a lock: on a busy machine Flower's five seconds are not enough.
    sql_mixin.SQLITE_PRAGMAS += (("busy_timeout", "60000"),)  # type: ignore[attr-defined, assignment]
    make_clock(deployment.home())
    Clock(deployment.home()).use()
    database, secret_file = deployment.path.resolve() / "superlink.db", deployment.home() / "executor.secret"
    if database.exists():
        database.chmod(0o600)
    config = config_of(deployment, new_secret(secret_file), str(database))
    app = guarded(config, deployment.proxies())
    folder = str(deployment.path.resolve())
    executor = [sys.executable, "-m", "pa3dfl.deploy.executor", "server", folder, str(secret_file)]
    beside = [subprocess.Popen(supervised(executor), preexec_fn=die_with_parent, umask=umask)]
    if not config.insecure:
        register = [sys.executable, "-m", "pa3dfl.cli", "deploy", "register", str(deployment.path)]
        beside.append(subprocess.Popen(register, preexec_fn=die_with_parent))
        threading.Thread(target=beside[-1].wait, daemon=True).start()  # otherwise it stays as a zombie
    if metrics_port is not None:
        serve_metrics(deployment, metrics_port)
    api: Any = app.app  # FastAPI's
    state = api.state.linkstate_factory.state
    expire_presence(state())
    threading.Thread(target=sweep_forever, args=(state,), daemon=True).start()
    try:
        uvicorn.run(
            Dated(app),
            host=config.host,
            port=config.port,
            ssl_keyfile=config.ssl_keyfile,
            ssl_certfile=config.ssl_certfile,
            log_config=get_uvicorn_log_config(console_handler.level),
            timeout_graceful_shutdown=5,
            # Access control needs the address of the real peer, and Flower has no web sockets.
            proxy_headers=False,
            date_header=False,  # `Dated` adds it, from the deployment's clock
            ws="none",
        )
    finally:
        for process in beside:
            process.terminate()


if __name__ == "__main__":
    show_messages()
    try:
        run(DeploymentFolder(Path(sys.argv[1])), *map(int, sys.argv[2:]))
    except UserError as e:
        sys.exit(f"pa3dfl: {e}")
