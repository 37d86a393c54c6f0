"""TensorBoard: one file of events, written with TensorBoard's own record writer; torch is not needed.

It is written to TENSORBOARD_DIR, by default to `tensorboard` in the run's folder. Beside the metrics' own names stand
those that verl's guides look for (`names.py`). Scalars have 32 bits, as TensorBoard's have.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import indent
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.record_writer import RecordWriter

from launcher.core.events import Distribution, How, Sample
from launcher.trackers.feed import TrackedStep
from launcher.trackers.jsonl import OwnFile
from launcher.trackers.names import distribution_names, with_guide_names
from launcher.trackers.tracker import TrackedRun, Tracker

VERSION = "brain.Event:2"
TEXT = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
LARGEST_FLOAT = 3.4028234663852886e38


class TensorBoard(Tracker):
    """The file is a function of the event log, so what a kill has cut is written again byte by byte."""

    def open(self, run: TrackedRun, state: Mapping[str, Any]) -> int | None:
        folder = Path(os.environ.get("TENSORBOARD_DIR") or run.folder / "tensorboard")
        self._file = OwnFile(folder / f"events.out.tfevents.{run.id}.rlrun", state, ours=True)
        self._records = RecordWriter(self._file)
        self.where, self.state, self._config = str(folder), self._file.state, run.config
        return self._file.has

    def log(self, steps: Sequence[TrackedStep]) -> None:
        for step in steps:
            if self._file.is_empty:
                self._write(Event(wall_time=step.at, file_version=VERSION))
                settings = json.dumps(dict(self._config), indent=1, default=str, ensure_ascii=False)
                self._write(Event(wall_time=step.at, step=0, summary=Summary(value=[_text("settings", settings)])))
            if step.went_back is not None:  # readers drop what they have from this step on
                first = step.went_back + 1 if step.went_back else 0
                start = SessionLog(status=SessionLog.START)
                self._write(Event(wall_time=step.at, step=first, session_log=start))
            for number, values in _values_by_step(step).items():
                self._write(Event(wall_time=step.at, step=number, summary=Summary(value=values)))
        self._file.flush()
        self.state = self._file.state

    def _write(self, event: Event) -> None:
        self._records.write(event.SerializeToString(deterministic=True))

    def close(self, how: How | None) -> None:
        self._file.close()


def _values_by_step(step: TrackedStep) -> dict[int, list[Summary.Value]]:
    """The values to write, by their own step: what was reported after a step comes with the next `TrackedStep`."""
    values_by_step = defaultdict[int, list[Summary.Value]](list)
    for distribution in step.distributions:
        for name in distribution_names(distribution.name):
            values_by_step[distribution.step].append(Summary.Value(tag=name, histo=_histogram(distribution)))
    texts = defaultdict[tuple[int, str], list[str]](list)
    for alert in step.alerts:
        fix = f" Fix: {alert.fix}" if alert.fix else ""
        texts[alert.step, "alerts"].append(f"**{alert.level}** {alert.text}{fix}")
    for sample in step.samples:
        texts[sample.step, f"val/samples/{sample.data_source}"].append(_sample(sample))
    for (number, tag), parts in texts.items():
        values_by_step[number].append(_text(tag, "\n\n---\n\n".join(parts)))
    for name, value in with_guide_names(step.metrics).items():
        values_by_step[step.step].append(Summary.Value(tag=name, simple_value=_float32(value)))
    return dict(sorted(values_by_step.items()))


def _float32(value: float) -> float:
    """`value`, or infinity where it exceeds the range of float32, which protobuf would refuse."""
    return value if abs(value) <= LARGEST_FLOAT or value != value else float("inf") if value > 0 else float("-inf")


def _histogram(distribution: Distribution) -> HistogramProto:
    """TensorBoard names a bucket by its right end; the first bucket, left of all edges, is empty."""
    count = sum(distribution.counts)
    middles = [(left + right) / 2 for left, right in zip(distribution.edges, distribution.edges[1:], strict=False)]
    pairs = list(zip(middles, distribution.counts, strict=False))
    return HistogramProto(
        min=min(distribution.edges, default=0.0), max=max(distribution.edges, default=0.0), num=count,
        sum=sum(middle * n for middle, n in pairs), sum_squares=sum(middle * middle * n for middle, n in pairs),
        bucket_limit=distribution.edges, bucket=[0, *distribution.counts],
    )  # fmt: skip


def _text(tag: str, text: str) -> Summary.Value:
    tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode("utf-8", "backslashreplace")])
    return Summary.Value(tag=tag, tensor=tensor, metadata=TEXT)


def _sample(sample: Sample) -> str:
    """The sample as Markdown, with its texts as code blocks."""
    parts = {"prompt": sample.prompt, "answer": sample.response, "expected": sample.ground_truth}
    texts = [f"**{name}**\n\n{indent(text, '    ', lambda line: True)}" for name, text in parts.items() if text]
    return "\n\n".join([sample.heading, *texts])
