"""Events from what verl writes: its file logger's lines, its files of held-out answers, and its console."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from launcher.core.bounded_parse import parse_json
from launcher.core.events import (
    Crashed,
    Event,
    HeldOutScores,
    LogProgress,
    Phase,
    PhaseName,
    Sample,
    Step,
    TrainingGroup,
    Waiting,
)
from launcher.core.metric_aliases import canonical
from launcher.core.prompt_scores import held_out_scores, prompt_digest
from launcher.core.redaction import cut_middle
from launcher.engines.verl.score import WAITS
from launcher.logs.forms.prefixes import without_source
from launcher.logs.tracebacks import TracebackReader

_STEP = re.compile(r"step:[0-9]{1,12} - ")
_TOTAL = re.compile(r"Total training steps: ([0-9]{1,9})")
_WAITS = re.compile(rf"{WAITS} ([0-9]{{1,9}}) s: (.*)")
_PHASES: tuple[tuple[str, PhaseName], ...] = (
    ("Training Progress:", "rollout"), ("Saving checkpoint to", "saving"), ("validation generation end", "rollout"),
)  # fmt: skip

TEXT = 1_000
"""About how many characters of each text of a training step's answers are kept."""


class VerlReader:
    """Reads the lines of verl, keeping the last step and error. Unreadable lines are skipped; nothing raises."""

    def __init__(self, shown: int) -> None:
        self.shown = shown
        """Held-out answers of each validation that become events."""
        self.step = 0
        self.steps = 0
        """Steps of the whole run; main_ppo prints how many it counts."""
        self.tracebacks = TracebackReader()
        self.phase: PhaseName = "loading"
        self._samples = dict[int, int]()
        self._scores = dict[int, dict[tuple[str, str], list[float]]]()
        """Scores of the answers to each prompt, by step; equal rows count as one."""

    def console(self, line: str) -> Iterator[Event]:
        """The events of a line that verl's processes printed."""
        text, source = without_source(line)
        if waits := _WAITS.search(text):
            yield Waiting(text=waits[2], for_s=float(waits[1]))
            return
        self.tracebacks.take(text, source)
        if _STEP.match(text):  # training continued, so no earlier error ended it
            self.tracebacks.errors.clear()
        if total := _TOTAL.search(text):
            self.steps = int(total[1])
            yield LogProgress(step=self.step, steps=self.steps)
        phase = next((name for mark, name in _PHASES if mark in text), None)
        if phase and phase != self.phase:
            self.phase = phase
            yield Phase(name=phase)

    def metrics(self, line: str) -> Iterator[Event]:
        """The step on a line of the file logger: `{"step": 3, "data": {...}}`."""
        node = _node(line)
        step, data = node.get("step"), node.get("data")
        if not isinstance(step, int) or not isinstance(data, Mapping):
            return
        self.step = max(step, self.step)
        self.phase = "rollout"
        yield Step(step=step, metrics=renamed({name: _number(value) for name, value in data.items()}))

    def answer(self, line: str) -> Iterator[Event]:
        """The held-out answer on a line of `validation/STEP.jsonl`."""
        node = _node(line)
        step = node.get("step")
        if not isinstance(step, int):
            return
        prompt, response, truth = _texts(node)
        source, score = str(node.get("data_source") or ""), _number(node.get("score"))
        prompts = self._scores.setdefault(step, {})
        prompts.setdefault((source, prompt_digest(prompt, truth)), []).append(score)
        if self._samples.get(step, 0) >= self.shown:
            return
        self._samples[step] = self._samples.get(step, 0) + 1
        yield Sample(
            step=step, data_source=source, prompt=prompt, response=response, ground_truth=truth, score=score
        )  # fmt: skip

    def groups(self, step: int, lines: Iterable[str], most: int) -> list[TrainingGroup]:
        """The answers to the first `most` prompts of `training/STEP.jsonl`; verl writes no advantages there."""
        by_prompt = dict[tuple[str, str], list[tuple[str, float]]]()
        for node in map(_node, lines):
            prompt, response, truth = _texts(node)
            if node and (len(by_prompt) < most or (prompt, truth) in by_prompt):
                by_prompt.setdefault((prompt, truth), []).append((response, _number(node.get("score"))))
        return [
            TrainingGroup(
                step=step, group=number, data_source="", prompt=cut_middle(prompt, TEXT),
                ground_truth=cut_middle(truth, TEXT), responses=tuple(cut_middle(text, TEXT) for text, _ in answers),
                scores=tuple(score for _, score in answers), parts={}, advantages=(math.nan,) * len(answers),
            )
            for number, ((prompt, truth), answers) in enumerate(by_prompt.items(), 1)
        ]  # fmt: skip

    def scores(self, step: int) -> list[HeldOutScores]:
        """Mean scores of a validation's prompts, once all its answers were read; empty when called again."""
        means = [
            (source, digest, math.fsum(scores) / len(scores))
            for (source, digest), scores in self._scores.pop(step, {}).items()
        ]
        return held_out_scores(step, [mean for mean in means if math.isfinite(mean[2])])

    def end(self, code: int) -> Crashed | None:
        """The crash, if verl did not train to its last step. The exit code is not enough: it is also 0 where verl
        resumes at the end of an epoch and trains nothing."""
        if code:
            first, last = self.tracebacks.errors[:1], self.tracebacks.errors[-1:]
            lines = last or [f"verl ended with exit code {code}, and named no error"]
            more = [f"first: {error}" for error in first if error not in lines]
            return Crashed(lines=(*lines, *more), cause="error")
        if self.steps and self.step < self.steps:
            got = f"verl ended with exit code 0 after step {self.step} of {self.steps}"
            return Crashed(lines=(got,), cause="error")
        return None


def renamed(data: Mapping[str, float]) -> dict[str, float]:
    """The metrics by our names. A metric keeps verl's name where it has no other, and where its new name would hide
    another metric."""
    metrics = dict[str, float]()
    for name, value in data.items():
        ours = canonical(name)
        metrics[name if ours in data and ours != name else ours] = value
    return metrics


def _node(line: str) -> dict[str, Any]:
    try:
        node = parse_json(line)
    except ValueError:
        return {}
    return node if isinstance(node, dict) else {}


def _texts(node: Mapping[str, Any]) -> tuple[str, str, str]:
    """Prompt, answer and ground truth of a line of answers."""
    prompt, response, truth = (str(node.get(key) or "") for key in ("input", "output", "gts"))
    return prompt, response, truth


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
