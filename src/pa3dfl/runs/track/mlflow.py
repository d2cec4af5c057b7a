"""MLflow: its own default store, or what MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME say."""

import os
import time
from collections.abc import Mapping
from pathlib import Path

import mlflow
from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

from pa3dfl.runs.track.base import PROJECT, Rows, Start, Tracker

LONGEST = 6000
"""Characters that MLflow takes for a parameter."""


class MLflow(Tracker):
    def __init__(self, start: Start) -> None:
        self._client, self._path = MlflowClient(), start.path
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
        if start.id is None:
            known = self._client.get_experiment_by_name(name)
            experiment = known.experiment_id if known else self._client.create_experiment(name)
            self.id = self._client.create_run(experiment, run_name=start.name).info.run_id
            params = [Param(k, str(v)[:LONGEST]) for k, v in start.config.items()]
            self._client.log_batch(self.id, params=params, tags=[RunTag("pa3dfl.path", str(start.path))])
        else:
            self.id = start.id
            self._client.update_run(self.id, "RUNNING")
        self.where = f"run {self.id} of {name!r} in {mlflow.get_tracking_uri()}"

    def numbers(self, rnd: int, values: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        self._client.log_batch(self.id, [Metric(k, v, now, rnd) for k, v in values.items()])

    def clients(self, rnd: int, rows: Rows) -> None:
        self._client.log_artifact(self.id, str(self._path / "clients.csv"))

    def picture(self, rnd: int, name: str, file: Path) -> None:
        self._client.log_artifact(self.id, str(file), "pictures")

    def end(self, summary: Mapping[str, float] | None) -> None:
        if summary:
            self.numbers(int(summary["rounds"]), {f"summary/{k}": v for k, v in summary.items()})
        self._client.set_terminated(self.id, "FINISHED" if summary else "KILLED")
