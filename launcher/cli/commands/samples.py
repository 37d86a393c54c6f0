"""`rlrun samples LOG-OR-RUN`: answers that were printed or logged, by prompt, and how they changed."""

from __future__ import annotations

import difflib
import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from launcher.cli.arguments import Root
from launcher.cli.commands.metrics import LogOrRunName
from launcher.cli.log_or_run import find
from launcher.cli.output import AsJson, make_table, out, printable, problems_named, say, say_json, say_table
from launcher.core.events import Event, Sample
from launcher.core.problems import Problem, Problems
from launcher.monitor.console import compact

MOST = 10_000
"""Answers of one step that are kept; of more the last."""
COLUMN = 36  # least characters of an answer beside another
SHORT = 2_000  # characters of an answer that are shown; --json has all


def samples(
    name: LogOrRunName,
    step: Annotated[int | None, typer.Option("--step", min=0, help="Only answers of this step.")] = None,
    search: Annotated[
        str, typer.Option("--search", help="Only answers with this text, or with it in the prompt.")
    ] = "",
    min_score: Annotated[float, typer.Option("--min-score", help="Only scores from here on.")] = -math.inf,
    max_score: Annotated[float, typer.Option("--max-score", help="Only scores up to here.")] = math.inf,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Most prompts to show.")] = 10,
    compare: Annotated[
        tuple[int, int] | None, typer.Option("--compare", metavar="A B", help="What changed from step A to step B.")
    ] = None,
    as_json: AsJson = False,
    root: Root = Path("runs"),
) -> None:
    """Show sampled answers of a run, or of a log of verl: the latest ones, those of a step, or what changed.

    Answers to the same prompt stand side by side. A score of no number is in no range.
    """
    with problems_named():
        source = find(name, root)
        ranged = min_score > -math.inf or max_score < math.inf

        def wanted(sample: Sample) -> bool:
            found = not search or search in sample.prompt or search in sample.response or search in sample.ground_truth
            return found and (not ranged or min_score <= sample.score <= max_score)

        if compare is not None:
            a, b = (_of_step(source.events(), number) for number in compare)
            return _compare(compare, a, b, wanted, limit, as_json)
        if step is not None:
            found = [sample for sample in _of_step(source.events(), step) if wanted(sample)]
        elif search or ranged:
            found = list(deque(filter(wanted, _samples(source.events())), MOST))
        else:
            found = _latest(source.events())
        if not found:
            chosen = step is not None or search or ranged
            got = "no such answer" if chosen else "no answers"
            fix = "a log with answers: verl prints them with trainer.log_val_generations"
            fix = f"use other bounds, or {fix}" if chosen else f"use {fix}"
            raise Problems(Problem(source.title, got, fix, "not-found"))
    if as_json:
        return say_json([asdict(sample) for sample in found[:limit]])
    return _show(found, limit)


def _samples(events: Iterable[Event]) -> Iterator[Sample]:
    return (event for event in events if isinstance(event, Sample))


def _of_step(events: Iterable[Event], step: int) -> list[Sample]:
    """Raises `Problems` where that step has none."""
    found, steps = deque[Sample](maxlen=MOST), set[int]()
    for sample in _samples(events):
        steps.add(sample.step)
        if sample.step == step:
            found.append(sample)
    if not found:
        known = sorted(steps)
        fix = f"use {' or '.join(map(str, known[-8:]))}" if known else "the log has no answers at all"
        raise Problems(Problem(f"step {step}", "has no answers", fix, "not-found"))
    return list(found)


def _latest(events: Iterable[Event]) -> list[Sample]:
    """Those of the last step that has any."""
    found = deque[Sample](maxlen=MOST)
    for sample in _samples(events):
        if found and sample.step != found[-1].step:
            found.clear()
        found.append(sample)
    return list(found)


def _by_prompt(found: Iterable[Sample]) -> dict[str, list[Sample]]:
    groups = defaultdict[str, list[Sample]](list)
    for sample in found:
        groups[sample.prompt].append(sample)
    return groups


def _show(found: Sequence[Sample], limit: int) -> None:
    groups = _by_prompt(found)
    for prompt, answers in list(groups.items())[:limit]:
        _say_prompt(prompt, answers[0])
        many = max(min(len(answers), out.width // COLUMN if out.is_terminal else len(answers)), 1)
        for begin in range(0, len(answers), many):
            _side_by_side(answers[begin : begin + many])
        say("")
    left = len(groups) - limit
    if left > 0:
        say(f"{left} more prompts; use --limit {len(groups)}", "dim")


def _say_prompt(prompt: str, sample: Sample) -> None:
    truth = f"  ·  ground truth {sample.ground_truth}" if sample.ground_truth else ""
    source = f"{sample.data_source}  ·  " if sample.data_source else ""
    say(source + " ".join(prompt.split())[:SHORT], "bold")
    if truth:
        say(truth.removeprefix("  ·  "), "dim")


def _side_by_side(answers: Sequence[Sample]) -> None:
    """One column each: step and score, then the answer."""
    if not out.is_terminal:
        for sample in answers:
            say(f"step {sample.step}  score {compact(sample.score)}")
            say("  " + sample.response[:SHORT].replace("\n", "\n  "))
        return
    headings = [
        f"step {sample.step}  score {compact(sample.score)}" + " " * place for place, sample in enumerate(answers)
    ]
    table = make_table(*headings, whole=())
    table.add_row(*(Text(printable(sample.response[:SHORT])) for sample in answers))
    say_table(table)


def _compare(
    steps: tuple[int, int],
    before: list[Sample],
    after: list[Sample],
    wanted: Callable[[Sample], bool],
    limit: int,
    as_json: bool,
) -> None:
    """The prompts of both steps, those whose score changed most first, with the words that changed."""
    old, new = _by_prompt(before), _by_prompt(after)
    pairs = [(prompt, old[prompt][0], new[prompt][0]) for prompt in old if prompt in new]
    if not pairs:
        fix = "use two steps with answers to the same prompts"
        raise Problems(Problem(f"steps {steps[0]} and {steps[1]}", "have no prompt in common", fix, "not-found"))
    pairs = [pair for pair in pairs if wanted(pair[1]) or wanted(pair[2])]
    pairs.sort(key=lambda pair: -abs(_change(pair[1], pair[2])))
    if as_json:
        return say_json([
            {"prompt": prompt, "step": list(steps), "score": [a.score, b.score], "response": [a.response, b.response]}
            for prompt, a, b in pairs[:limit]
        ])  # fmt: skip
    changes = [_change(a, b) for _, a, b in pairs]
    same = sum(a.response == b.response for _, a, b in pairs)
    say(
        f"{len(pairs)} prompts of both steps: {sum(x > 0 for x in changes)} better, "
        f"{sum(x < 0 for x in changes)} worse, {sum(x == 0 for x in changes)} of equal score; "
        f"{same} answers are the same",
        "dim",
    )
    for prompt, a, b in pairs[:limit]:
        say("")
        _say_prompt(prompt, b)
        say(f"step {a.step}  score {compact(a.score)}  →  step {b.step}  score {compact(b.score)}")
        out.print(_differences(a.response[:SHORT], b.response[:SHORT]), soft_wrap=True, highlight=False)
    return None


def _change(before: Sample, after: Sample) -> float:
    change = after.score - before.score
    return change if math.isfinite(change) else 0.0


def _differences(before: str, after: str) -> Text:
    """The later answer; words that are gone are [-so-], new ones {+so+}, coloured on a terminal."""
    old, new = before.split(" "), after.split(" ")
    text = Text()
    for what, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if what == "equal":
            text.append(printable(" ".join(old[a:b])) + " ")
            continue
        if b > a:
            text.append(f"[-{printable(' '.join(old[a:b]))}-] ", "red")
        if d > c:
            text.append(f"{{+{printable(' '.join(new[c:d]))}+}} ", "green")
    text.rstrip()
    return text
