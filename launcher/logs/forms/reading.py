"""What the forms of a log share while it is read: its step numbers, and the answers that wait for their step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from launcher.core.events import Alert, Event, LogProgress, Sample, Step
from launcher.logs.forms.numbering import SUREST, Basis, Kind, Numbering
from launcher.logs.forms.values import NUMBER, to_number

_TRAINER_PREFIXES = (
    "learning_rate", "train/learning_rate", "completions/", "completion_length", "rewards/", "objective/",
    "eval_runtime", "train_runtime",
)  # fmt: skip
"""How metric names begin that the trainers of transformers and TRL log."""
_TRL_PREFIXES = ("completion", "reward", "objective/", "kl", "num_tokens", "mean_token_accuracy")
"""How some of them begin that only those of TRL log."""


LONGEST = 2**16
"""Longer lines are read only as step lines, answers or dicts; a wrapped line is cut at this length."""
MOST_NAMES = 20_000
"""Most metric names that are read from one log."""
MANY_NAMES = "many-names"
"""`rule` of the alert that later names are left out."""


class LineReading:
    """Makes the events. `at` is their time; `source` is the process that wrote the line, as Ray names it; `last` is the
    last step, `bar` the count of the last bar of the training, and `header` the step of the latest heading."""

    def __init__(self, at: float, basis: Basis | None) -> None:
        self.at = at
        self.numbers = Numbering(basis)
        self.source = ""
        self.last: int | None = None
        self.bar: int | None = None
        self.header: int | None = None
        self.steps = 0
        """Steps made so far."""
        self._names = set[str]()
        self._dropped = 0
        self.complete = False
        """Whether the progress reported last had reached its total."""
        self.answers = list[Mapping[str, str]]()
        self._progress: tuple[int, int, float | None, float | None] | None = None

    @property
    def kind(self) -> Kind:
        return self.numbers.basis.kind

    @property
    def sure(self) -> bool:
        return self.numbers.basis.rank == SUREST

    def step(self, step: int, metrics: dict[str, float]) -> Iterator[Event]:
        """The events of a step: the answers that waited for its number, and the step."""
        self.steps += 1
        yield from self.samples(step)
        self.last = step
        yield Step(at=self.at, step=step, metrics=self.kept(metrics))

    def kept(self, metrics: dict[str, float]) -> dict[str, float]:
        """`metrics` without names beyond the first `MOST_NAMES` of the log: a log with more is damaged."""
        if metrics.keys() <= self._names:
            return metrics
        new_names, room = [name for name in metrics if name not in self._names], MOST_NAMES - len(self._names)
        self._names.update(new_names[:room])
        self._dropped += len(new_names[room:])
        return {name: metrics[name] for name in metrics if name in self._names} if new_names[room:] else metrics

    def overfull(self) -> Iterator[Alert]:
        """An alert if metrics were left out."""
        if self._dropped:
            text = f"more than {MOST_NAMES:,} names of metrics; {self._dropped:,} values of later names are left out"
            yield Alert(at=self.at, step=self.last or 0, text=text, rule=MANY_NAMES)

    def samples(self, step: int | None = None) -> Iterator[Sample]:
        """The answers that waited for the number of their step, by default the one after the last step."""
        if step is None:
            step = 0 if self.last is None else self.last + 1
        waiting, self.answers = self.answers, []
        for fields in waiting:
            score = to_number(fields["score"])
            if score is None and (match := NUMBER.match(fields["score"].lstrip())):  # a remark follows
                score = float(match[0])
            yield Sample(
                at=self.at, step=step, data_source="", prompt=fields.get("prompt", ""),
                response=fields.get("response", ""), ground_truth=fields.get("ground_truth", ""),
                score=math.nan if score is None else score,
            )  # fmt: skip

    def verl_step(self, step: int, metrics: dict[str, float], kind: Kind = "verl") -> Iterator[Event]:
        """The events of a step line that surely names its step."""
        self.numbers.admits(kind, SUREST, step)
        yield from self.step(step, metrics)

    def evaluation(self, metrics: dict[str, float], step: int | None = None) -> Iterator[Event]:
        """The step of metrics of an evaluation or of the whole training: the last one, unless `step` is given."""
        if self.kind == "unknown":
            self.numbers.admits(self.kind_of(metrics, 0), 0, None)
        if not self.sure:
            yield from self.step(self.numbers.reached(self.last, self.bar) if step is None else step, metrics)

    def kind_of(self, metrics: dict[str, float], rank: int) -> Kind:
        """The kind of a dict: `trl` or `transformers` for their trainers, else `dicts`; once dicts own the steps of a
        log, all have the owner's kind."""
        owner = self.numbers.basis
        if owner.kind in ("trl", "transformers", "dicts") and owner.rank == rank:
            return owner.kind
        if not any(name.startswith(_TRAINER_PREFIXES) for name in metrics):
            return "dicts"
        return "trl" if any(name.startswith(_TRL_PREFIXES) for name in metrics) else "transformers"

    def heading(self) -> int | None:
        """The step that the heading above names; a heading counts for one step only."""
        step, self.header = self.numbers.heading(self.header), None
        return step

    def progress(
        self, step: int, steps: int, elapsed_s: float | None = None, left_s: float | None = None,
        per_step_s: float | None = None,
    ) -> Iterator[Event]:  # fmt: skip
        """A `LogProgress` event where the total is known and something changed."""
        progress = (step, steps, elapsed_s, left_s)
        if steps > 0 and progress != self._progress:
            self._progress, self.complete = progress, step >= steps
            yield LogProgress(
                at=self.at, step=step, steps=steps, elapsed_s=elapsed_s, left_s=left_s, per_step_s=per_step_s
            )


class Form:
    """A form of lines. The parser gives a line to the first form that reads it, and its `rest` to later forms."""

    ends_block = False
    """Whether its lines end a block of names and numbers (`blocks`)."""

    def __init__(self, reading: LineReading) -> None:
        self.reading = reading
        self.rest = ""

    def read(self, line: str) -> Iterator[Event] | None:
        """The events of a line; None where it is not of this form."""
        raise NotImplementedError

    def finish(self) -> Iterator[Event]:
        """The events of lines that waited for more lines, at the end of the log."""
        return iter(())
