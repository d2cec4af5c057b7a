"""The status of a deployment for Prometheus, on this machine only. Needs the extra `pa3dfl[metrics]`."""

from collections.abc import Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from pa3dfl.core.errors import UserError
from pa3dfl.deploy.folder import DeploymentFolder
from pa3dfl.deploy.status import Status, status

if TYPE_CHECKING:
    from prometheus_client.core import Metric

HOST = "127.0.0.1"


def check_installed() -> None:
    if find_spec("prometheus_client") is None:
        raise UserError("--metrics needs prometheus-client: pip install 'pa3dfl[metrics]'")


def serve_metrics(deployment: DeploymentFolder, port: int) -> None:
    """Answer Prometheus from a thread of this process, with the status at that time."""
    from prometheus_client import start_http_server
    from prometheus_client.registry import CollectorRegistry

    registry = CollectorRegistry()
    registry.register(StatusCollector(deployment))
    start_http_server(port, HOST, registry)


class StatusCollector:
    def __init__(self, deployment: DeploymentFolder) -> None:
        self.deployment = deployment

    def describe(self) -> list["Metric"]:
        """Nothing: the server may not answer yet when this is registered."""
        return []

    def collect(self) -> Iterable["Metric"]:
        try:
            return metrics(status(self.deployment))
        except (UserError, OSError):  # the server is starting; pa3dfl_up says so
            return [gauge("up", "Whether the status could be read", 0)]


def metrics(now: Status) -> Iterable["Metric"]:
    """Values that are not known yet have no sample."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    yield gauge("up", "Whether the status could be read", 1)
    yield gauge("training", "Whether a training runs", now.state == "training")
    yield gauge("round", "Rounds done", now.rounds_done)
    yield gauge("rounds", "Rounds to do", now.rounds)
    yield gauge("accuracy", "Latest mean test accuracy, 0 to 1", now.accuracy)
    yield gauge("train_loss", "Mean training loss of the last round", now.train_loss)
    yield gauge("round_seconds", "Mean seconds of the last rounds", now.seconds_per_round)
    yield gauge("seconds_left", "Expected seconds to the end of the training", now.seconds_left)
    nodes = GaugeMetricFamily("pa3dfl_nodes", "Nodes by state", labels=["state"])
    counts = {"registered": len(now.nodes), "connected": now.online}
    for state, count in (counts | {"missing": len(now.missing), "rejected": len(now.rejected)}).items():
        nodes.add_metric([state], count)
    yield nodes
    yield CounterMetricFamily("pa3dfl_rejected_updates", "Rejected updates of this run", now.rejected_updates)
    traffic = CounterMetricFamily("pa3dfl_tensor_bytes", "Bytes of tensors in this run", labels=["direction"])
    traffic.add_metric(["down"], now.bytes_down)
    traffic.add_metric(["up"], now.bytes_up)
    yield traffic


def gauge(name: str, about: str, value: float | None) -> "Metric":
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily(f"pa3dfl_{name}", about, None if value is None else float(value))
