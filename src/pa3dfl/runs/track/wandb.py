"""Weights & Biases. Files are written into the run's folder; with WANDB_MODE=offline they stay there."""

import os
import uuid
from collections.abc import Mapping
from pathlib import Path

import wandb

from pa3dfl.runs.track.base import PROJECT, Rows, Start, Tracker


class WandB(Tracker):
    def __init__(self, start: Start) -> None:
        self.id = start.id or uuid.uuid4().hex[:8]
        settings = wandb.Settings(console="off", x_disable_stats=True, disable_code=True, disable_git=True)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT, id=self.id, name=start.name,
            group=start.path.parent.name, config=dict(start.config), dir=start.path, resume="allow", settings=settings,
        )  # fmt: skip
        offline = f"wandb sync {self._run.settings.sync_dir}"
        self.where = offline if self._run.offline else str(self._run.url)

    def numbers(self, rnd: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=rnd)

    def clients(self, rnd: int, rows: Rows) -> None:
        columns: list[str | int] = list(rows[0])
        table = wandb.Table(columns=columns, data=[[row[str(c)] for c in columns] for row in rows])
        self._run.log({"clients": table}, step=rnd)

    def picture(self, rnd: int, name: str, file: Path) -> None:
        self._run.log({f"pictures/{name}": wandb.Image(str(file))}, step=rnd)

    def end(self, summary: Mapping[str, float] | None) -> None:
        self._run.summary.update({f"summary/{k}": v for k, v in (summary or {}).items()})
        self._run.finish(exit_code=0 if summary else 1)
