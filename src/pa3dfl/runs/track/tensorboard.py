"""TensorBoard: event files in the run's folder `tensorboard`."""

import struct
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import yaml
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from pa3dfl.runs.track.base import Rows, Start, Tracker


class TensorBoard(Tracker):
    def __init__(self, start: Start) -> None:
        folder = start.path / "tensorboard"
        self.id, self.where = str(folder), f"tensorboard --logdir {folder}"
        self._writer = EventFileWriter(str(folder))
        if start.id is None:
            self._add(0, text("config", f"```\n{yaml.safe_dump(dict(start.config), sort_keys=False)}```"))
        else:
            session = SessionLog(status=SessionLog.START)  # what was written after this round is not shown
            self._writer.add_event(Event(wall_time=time.time(), step=start.round + 1, session_log=session))

    def numbers(self, rnd: int, values: Mapping[str, float]) -> None:
        self._add(rnd, *(Summary.Value(tag=k, simple_value=v) for k, v in values.items()))

    def clients(self, rnd: int, rows: Rows) -> None:
        accuracies = [r["test_accuracy"] for r in rows if r["test_accuracy"] is not None]
        self._add(rnd, text("clients", table(rows)))
        if accuracies:
            self._add(rnd, Summary.Value(tag="clients/test_accuracy", histo=histogram(np.array(accuracies))))

    def picture(self, rnd: int, name: str, file: Path) -> None:
        png = file.read_bytes()
        width, height = struct.unpack(">II", png[16:24])
        image = Summary.Image(height=height, width=width, colorspace=4, encoded_image_string=png)
        self._add(rnd, Summary.Value(tag=f"pictures/{name}", image=image))

    def end(self, summary: Mapping[str, float] | None) -> None:
        if summary:
            rows = "\n".join(f"| {k} | {v:g} |" for k, v in summary.items())
            self._add(int(summary["rounds"]), text("summary", f"| | |\n|---|---|\n{rows}"))
        self._writer.close()

    def _add(self, rnd: int, *values: Summary.Value) -> None:
        self._writer.add_event(Event(wall_time=time.time(), step=rnd, summary=Summary(value=values)))
        self._writer.flush()


def text(tag: str, markdown: str) -> Summary.Value:
    """A text in the form that TensorBoard's tab of texts shows."""
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    tensor = TensorProto(dtype=DT_STRING, string_val=[markdown.encode()])
    return Summary.Value(tag=tag, metadata=metadata, tensor=tensor)


def table(rows: Rows) -> str:
    columns = list(rows[0]) if rows else []
    cells = [columns, ["---"] * len(columns), *([str(row[c]) for c in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def histogram(values: np.ndarray) -> HistogramProto:
    counts, edges = np.histogram(values, bins=20, range=(0, 1))
    return HistogramProto(
        min=values.min(), max=values.max(), num=len(values), sum=values.sum(), sum_squares=(values**2).sum(),
        bucket_limit=edges[1:].tolist(), bucket=counts.tolist(),
    )  # fmt: skip
