"""`rlrun samples LOG-OR-RUN`: answers that were printed or logged, by prompt, and how they changed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from launcher.cli.arguments import LogOrRunName, Root
from launcher.cli.output import CommandAnswer, make_table, out, say, say_table
from launcher.core.events import Sample
from launcher.core.numbers import compact
from launcher.core.redaction import printable
from launcher.core.state import TrainingAnswer
from launcher.monitor.agents import trend_line
from launcher.views.read import find
from launcher.views.samples import (
    ChangedAnswer,
    SampleFilter,
    answers_of,
    changed_words,
    changes_line,
    compare_samples,
    evaluations_of,
)  # fmt: skip

COLUMN = 36  # least width of an answer beside another, in characters
SHORT = 2_000  # characters of an answer that are shown; --json has all


def samples(
    name: LogOrRunName,
    step: Annotated[int | None, typer.Option(min=0, help="Only answers of this step.")] = None,
    search: Annotated[str, "Only answers with this text, or with it in the prompt."] = "",
    min_score: Annotated[float, "Only scores from here on."] = -math.inf,
    max_score: Annotated[float, "Only scores up to here."] = math.inf,
    group: Annotated[int | None, typer.Option(min=1, help="Only this group of a training step: 1, 2, ...")] = None,
    training: Annotated[bool, "Answers of training steps, also where prompts are held out."] = False,
    limit: Annotated[int, typer.Option(min=1, help="Most prompts to show.")] = 10,
    compare: Annotated[
        tuple[int, int] | None, typer.Option(metavar="A B", help="What changed from step A to step B.")
    ] = None,
    evaluations: Annotated[bool, "What each validation of an e-mail agent came to, a line each."] = False,
    root: Root = Path("runs"),
) -> CommandAnswer:
    """Answers to the same prompt stand side by side, those of a training step with their advantages. A score of no
    number is in no range.

    rlrun samples RUN --step 40 --group 3
    """
    criteria = SampleFilter(search, min_score, max_score, group, training)
    source = find(name, root)
    if evaluations:
        trend = evaluations_of(source)
        return CommandAnswer([vars(each) for each in trend], lambda: say("\n".join(map(trend_line, trend))))
    if compare is not None:
        pairs = compare_samples(source.events, compare, criteria)
        return CommandAnswer([pair.node for pair in pairs[:limit]], lambda: _show_changes(pairs, limit))
    groups = answers_of(source, step, criteria)
    shown = dict(list(groups.items())[:limit])
    return CommandAnswer([*chain(*shown.values())], lambda: _show_groups(shown, groups))


def _show_groups(shown: Mapping[str, Sequence[Sample]], groups: Mapping[str, Sequence[Sample]]) -> None:
    for prompt, answers in shown.items():
        _say_prompt(prompt, answers[0])
        per_row = max(min(len(answers), out.width // COLUMN if out.is_terminal else len(answers)), 1)
        for first in range(0, len(answers), per_row):
            _side_by_side(answers[first : first + per_row])
        say("")
    if len(groups) > len(shown):
        say(f"{len(groups) - len(shown)} more prompts; use --limit {len(groups)}", "dim")


def _say_prompt(prompt: str, sample: Sample) -> None:
    source = f"{sample.data_source}  ·  " if sample.data_source else ""
    say(source + " ".join(prompt.split())[:SHORT], "bold")
    if sample.ground_truth:
        say(f"ground truth {sample.ground_truth}", "dim")


def _side_by_side(answers: Sequence[Sample]) -> None:
    """Print answers in columns on a terminal, else one below another: step and score, then the text."""
    heads = list(map(_answer_head, answers))
    if out.is_terminal and not any(sample.episodes for sample in answers):
        say_table(make_table(heads, [[sample.response[:SHORT] for sample in answers]], whole=()))
        return
    for head, sample in zip(heads, answers, strict=True):
        say(head)
        for line in _turn_lines(sample) or sample.response[:SHORT].split("\n"):
            say("  " + line)


def _turn_lines(sample: Sample) -> list[str]:
    """Lines of an episode: each turn's reward, its calls with their seconds, and the environment's answer; empty for an
    answer of one turn."""
    lines = list[str]()
    for episode in sample.episodes:
        for number, turn in enumerate(episode.turns, 1):
            earned = "" if turn.advantage is None else f"  advantage {turn.advantage:+.3g}"
            lines += [f"turn {number}  reward {compact(turn.reward)}{earned}", *_indented(turn.text)]
            for call in turn.calls:
                wrong = f": {call.error}" if call.error else ""
                lines.append(f"  ({call.name} {call.seconds:.2f} s{wrong})")
            lines += _indented(turn.observation, "  > ")
        lines.append(f"ended: {episode.outcome}" + (f", {episode.fault}" if episode.fault else ""))
    return lines


def _indented(text: str, mark: str = "  ") -> list[str]:
    return [mark + line for line in text[:SHORT].split("\n") if line]


def _answer_head(answer: Sample) -> str:
    head = f"step {answer.step}  " + ("not scored" if answer.score is None else f"score {compact(answer.score)}")
    if not isinstance(answer, TrainingAnswer):
        return head
    numbers = {name: x for name, x in {"advantage": answer.advantage, **answer.parts}.items() if x == x}
    return "  ".join([f"group {answer.group}  {head}", *(f"{name} {compact(x)}" for name, x in numbers.items())])


def _show_changes(pairs: list[ChangedAnswer], limit: int) -> None:
    say(changes_line(pairs), "dim")
    for pair in pairs[:limit]:
        a, b = pair.before, pair.after
        say("")
        _say_prompt(b.prompt, b)
        score_texts = [f"  score {compact(x)}" if x == x else "" for x in pair.scores]
        say(f"step {a.step}{score_texts[0]}  →  step {b.step}{score_texts[1]}")
        out.print(_differences(a.response[:SHORT], b.response[:SHORT]), soft_wrap=True, highlight=False)


def _differences(before: str, after: str) -> Text:
    """The later answer with removed words as [-word-] and new ones as {+word+}, coloured on a terminal."""
    forms = {"same": ("{} ", ""), "gone": ("[-{}-] ", "red"), "new": ("{{+{}+}} ", "green")}
    text = Text()
    for kind, words in changed_words(before, after):
        form, style = forms[kind]
        text.append(form.format(printable(words)), style)
    text.rstrip()
    return text
