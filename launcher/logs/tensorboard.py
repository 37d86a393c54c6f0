"""Event files of TensorBoard, read with its own package, which is imported only then."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from launcher.core.events import Event, Step
from launcher.core.problems import Problem, Problems

KIND = "tensorboard"


def is_one(start: bytes) -> bool:
    """Whether a file that begins with `start` is an event file of TensorBoard."""
    return b"brain.Event:" in start[:64]


def read_events(path: Path, at: float) -> Iterator[Event]:
    """The steps in order, up to a truncated record. Raises `OSError`, and `Problems` where the package is not
    installed."""
    for step, group in groupby(_scalars(path), key=lambda scalar: scalar[0]):
        yield Step(at=at, step=step, metrics={tag: value for _, tag, value in group})


def _scalars(path: Path) -> Iterator[tuple[int, str, float]]:
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader  # noqa: PLC0415
        from tensorboard.util.tensor_util import make_ndarray  # noqa: PLC0415
    except ImportError:
        got, fix = "is an event file of TensorBoard, which is not installed", "use pip install tensorboard"
        raise Problems(Problem(str(path), got, fix, "not-installed")) from None
    for event in EventFileLoader(str(path)).Load():  # which makes tensors of all values
        for value in event.summary.value:
            number = make_ndarray(value.tensor)
            if number.size == 1 and number.dtype.kind == "f":
                yield event.step, value.tag, float(number.item())
