"""A real SuperLink in a thread of this process, with TLS on a free port, for the machines of `machines.py`."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from machines import Machines

from pa3dfl.deploy.control_client import public_key
from pa3dfl.deploy.init import write_yaml
from pa3dfl.deploy.node_launcher import free_port
from pa3dfl.deploy.superlink import config_of, guarded


@contextmanager
def serving(machines: Machines) -> Iterator[Any]:
    """Registers the machines' keys, calls them by the ids that the SuperLink gave them; yields its state."""
    site = machines.deployment
    write_yaml(site.server, site.settings() | {"port": free_port()})
    config = config_of(site, b"s" * 64, str(site.path / "superlink.db"))
    app = guarded(config, [])
    state = app.app.state.linkstate_factory.state()  # type: ignore[attr-defined]
    settings = {
        "host": config.host,
        "port": config.port,
        "log_level": "warning",
        "proxy_headers": False,
        "ws": "none",
        "timeout_graceful_shutdown": 1,
    }
    files = {"ssl_keyfile": config.ssl_keyfile, "ssl_certfile": config.ssl_certfile}
    server = uvicorn.Server(uvicorn.Config(app, **settings, **files))  # type: ignore[arg-type]
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not server.started:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    for old, node in list(machines.here.items()):
        key = public_key((site.keys / f"{node['name']}.pub").read_bytes())
        machines.here[state.create_node("<id:none>", "none", key, 0)] = machines.here.pop(old)
    yield state
    server.should_exit = True
    thread.join(20)
