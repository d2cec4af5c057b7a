"""trackio: a local dashboard, or one on Hugging Face; trackio's own environment variables say which."""

import uuid
from collections.abc import Mapping
from pathlib import Path

import trackio

from pa3dfl.runs.track.base import PROJECT, Rows, Start, Tracker


class Trackio(Tracker):
    def __init__(self, start: Start) -> None:
        self.id = start.id or f"{start.name}-{uuid.uuid4().hex[:6]}"  # trackio finds runs by name
        self._run = trackio.init(
            PROJECT, name=self.id, config=dict(start.config), resume="allow", embed=False, auto_log_gpu=False,
            auto_log_cpu=False,
        )  # fmt: skip
        self.where = self._run.url or f"trackio show --project {PROJECT}, run {self.id}"

    def numbers(self, rnd: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=rnd)

    def clients(self, rnd: int, rows: Rows) -> None:
        columns = list(rows[0])
        table = trackio.Table(columns=columns, data=[[row[c] for c in columns] for row in rows])
        self._run.log({"clients": table}, step=rnd)

    def picture(self, rnd: int, name: str, file: Path) -> None:
        self._run.log({f"pictures/{name}": trackio.Image(file)}, step=rnd)

    def end(self, summary: Mapping[str, float] | None) -> None:
        if summary:
            self._run.log({f"summary/{k}": v for k, v in summary.items()}, step=int(summary["rounds"]))
        self._run.finish()  # type: ignore[no-untyped-call]
