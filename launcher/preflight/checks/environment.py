"""Tries an environment on a few rows before a run trains in it: equal episodes have equal results, nothing leaks, every
answer is scored or is a fault, and a fault is never a score."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateResult
from dataclasses import dataclass
from functools import partial, reduce
from itertools import count
from operator import getitem
from typing import Any, TypeVar

from launcher.core import activity
from launcher.core.check_result import CheckResult, any_failed
from launcher.core.numbers import compact
from launcher.core.problems import Problems
from launcher.preflight.checks.context import Context
from launcher.spec.data import Row
from launcher.spec.environment import TRUSTED, Environment, Final, Observation, Sessions, Spoken, ToolCall
from launcher.text.process import TextProcess

T = TypeVar("T")
MEANINGLESS, NONSENSE = "a nonsensical answer", "qx zv 7q"
ROWS, SESSIONS = 2, 40
"""Rows and sessions that a plan tries; `rlrun env check` tries more."""
MEMORY, FILES = 24 * 2**20, 12
"""Growth in bytes, and in files or threads, over all tried sessions that counts as a leak."""
LEAKS_S = 20.0  # seconds after which no further session is played to find leaks
SLOW_S = 5.0
TOGETHER = 16  # episodes that run at the same time
ROWS_S = 10.0  # seconds after which no further row is tried
VALUES: Mapping[str, Any] = {"integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}
"""Example values of JSON schema types; other types get a text."""
TRUTH = "the ground truth"
REPEATED = {"messages": "text", "ended": "end", "reward": "reward of a turn", "state": "state"}
"""Facts of a turn that must be equal in a repeated episode, with their names."""
FORMS = ("#### {}", "\\boxed{{{}}}", "<answer>{}</answer>")
"""Forms in which an environment may accept a ground truth that it does not accept as it is."""
NOTHING: Mapping[str, Sequence[Spoken]] = {
    "an empty answer": [Spoken("", "")],
    MEANINGLESS: [Spoken(NONSENSE, NONSENSE)],
    "an unreadable call": [Spoken("<tool_call>{", "", unreadable="it has no end"), Spoken("", "")],
}
"""Turns of a policy without any knowledge, by what they are."""


@dataclass(frozen=True)
class Played:
    """An episode of given turns, and what it came to."""

    row: Row
    what: str
    """What the turns are, in words."""
    turns: Sequence[Spoken]
    observations: tuple[Observation, ...]
    final: Final
    seconds: float

    @property
    def where(self) -> str:
        return f"{self.row.where}: {self.what}"

    @property
    def fault(self) -> tuple[str, str]:
        """Why the episode has no score, and what to do; the first is empty where it has one, or the run's reward scores
        it."""
        last, outcome = self.observations[-1], self.observations[-1].ended or "turn-limit"
        if TRUSTED[outcome]:
            return self.final.fault, "let reward give a finite number for every answer, and close() end"
        if len(self.observations) == 1:
            return last.reason or outcome, "let reset work for every row"
        fix = "let what the policy did wrong be a ValueError, KeyError or a text, and repair what fails by itself"
        return last.reason or outcome, fix

    def change(self, other: Played) -> str:
        """The first value that differs in `other`, of those that must be equal when an episode is repeated; empty where
        none does."""
        for name, label in REPEATED.items():
            if [vars(step)[name] for step in self.observations] != [vars(step)[name] for step in other.observations]:
                return label
        if self.final.reward != other.final.reward:
            return "score"
        return "" if dict(self.final.parts) == dict(other.final.parts) else "part of the score"


class Player:
    """Plays episodes of given turns in an environment's processes."""

    def __init__(self, environment: Environment, sessions: Sessions, tried: list[Played] | None = None) -> None:
        self.environment, self.sessions, self.numbers = environment, sessions, count(1)
        self.tried = [] if tried is None else tried

    def play(self, row: Row, turns: Sequence[Spoken], what: str = "") -> Played:
        return self.play_together([(row, what, turns)])[0]

    def play_together(self, episodes: Sequence[tuple[Row, str, Sequence[Spoken]]]) -> list[Played]:
        """Play episodes, each of a row and what its turns are, at the same time, turn by turn."""
        started = time.monotonic()
        late = Observation(ended="timeout", reason="no answer in time")
        numbers = [next(self.numbers) for _ in episodes]
        begins = [self.sessions.begin(number, row) for number, (row, *_) in zip(numbers, episodes, strict=True)]
        logs = [[self._result_of(begin, late)] for begin in begins]
        for index in range(max(len(turns) for *_, turns in episodes)):
            steps = [
                (log, self.sessions.step(number, turns[index]))
                for number, log, (*_, turns) in zip(numbers, logs, episodes, strict=True)
                if index < len(turns) and not log[-1].ended
            ]
            for log, step in steps:
                log.append(self._result_of(step, late))
        ends = [
            self.sessions.end(number, log[-1].ended or "turn-limit") for number, log in zip(numbers, logs, strict=True)
        ]
        finals = [self._result_of(end, Final(fault="its end took too long")) for end in ends]
        seconds = time.monotonic() - started
        return [Played(*episode, tuple(log), final, seconds)
                for episode, log, final in zip(episodes, logs, finals, strict=True)]  # fmt: skip

    def again(self) -> Iterator[tuple[Played, Played]]:
        """Play everything that was tried once more, with many episodes of different rows at the same time: pairs of the
        first and the second time."""
        parts = -(-len(self.tried) // TOGETHER)
        for first in (self.tried[part::parts] for part in range(parts)):
            yield from zip(first, self.play_together([(one.row, one.what, one.turns) for one in first]), strict=True)

    @property
    def slow(self) -> Played | None:
        """The first slow one of all that was tried, but for the very first, which starts a process."""
        return next((one for one in self.tried[1:] if one.seconds > SLOW_S), None)

    def _result_of(self, future: Future[T], late: T) -> T:
        try:
            return future.result(min(self.environment.timeout_s, SLOW_S) + self.environment.tool_timeout_s)
        except LateResult:
            return late


def probes(environment: Environment, row: Row) -> dict[str, Sequence[Spoken]]:
    """Turns by probe: of a policy that knows nothing, that errs, and, with a ground truth, that is right, at once and
    after a call of each tool."""
    right = Spoken(row.ground_truth or "", row.ground_truth or "")
    turns = {**NOTHING, TRUTH: [right]} if row.ground_truth is not None else dict(NOTHING)
    if environment.tools():
        turns["an unknown tool"] = [_call("no_such_tool", {}), Spoken("", "")]
    for schema in environment.tools():
        function = schema["function"]
        parameters = function["parameters"]
        arguments = {name: _value(node, parameters) for name, node in parameters.get("properties", {}).items()}
        turns[f"{function['name']}({json.dumps(arguments)})"] = [_call(function["name"], arguments), right]
        turns[f"{function['name']} with wrong arguments"] = [_call(function["name"], {"no_such": 1}), Spoken("", "")]
    return turns


def _value(node: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
    """An example value for a JSON schema; `root` has the definitions that `$ref` names."""
    if "$ref" in node:
        return _value(reduce(getitem, node["$ref"].strip("#/").split("/"), root), root)
    if "anyOf" in node:
        return _value(node["anyOf"][0], root)
    if "properties" in node:
        return {name: _value(node["properties"][name], root) for name in node.get("required", ())}
    kinds = node.get("type", "string")
    values = [*node.get("enum", ()), node.get("const"), VALUES.get(kinds if isinstance(kinds, str) else kinds[0], "a")]
    return next(value for value in values if value is not None)


def _call(name: str, arguments: Mapping[str, Any]) -> Spoken:
    return Spoken("", "", (ToolCall(name, arguments, "call00000"),))


def check(context: Context) -> Iterator[CheckResult]:
    """A small trial; nothing for an environment of one turn, or one with problems of its own."""
    run = context.run
    if not run.environment.several_turns or context.reward_problems or run.environment.missing_requirements():
        return
    if rows := context.train.rows[:ROWS]:
        activity.report("trying the environment")
        tried = list[Played]()
        yield from try_environment(run.environment, rows, SESSIONS, tried)
        if not context.model_problems:
            yield from _check_lengths(context, tried)


def try_environment(
    environment: Environment, rows: Sequence[Row], many: int, tried: list[Played] | None = None
) -> Iterator[CheckResult]:
    """Results of all probes, or one OK result. Played episodes are appended to `tried`."""
    sessions = environment.sessions()
    try:
        player, results, started = Player(environment, sessions, tried), list[CheckResult](), time.monotonic()
        for row in rows:
            results += _try_row(player, row)
            if any_failed(results) or player.slow or time.monotonic() - started > ROWS_S:
                break
        looks = _check_repeats, partial(_check_leaks, rows=rows, many=many), _check_without_files
        for look in looks[:1] if player.slow else looks:
            results += [] if any_failed(results) else look(player)
        yield from dict.fromkeys(results)
        if all(one.level == "OK" for one in results):
            kinds = len(probes(environment, rows[0]))
            tried_rows = len({one.row.where for one in player.tried})
            got = f"{kinds} kinds of answers on {tried_rows} rows: each has an equal score a second time"
            yield CheckResult("OK", "environment", got)
    finally:
        sessions.close()


def _try_row(player: Player, row: Row) -> Iterator[CheckResult]:
    """Play each probe on one row."""
    scores, reasons = dict[str, float | None](), set[str]()
    for what, turns in probes(player.environment, row).items():
        played = player.play(row, turns, what)
        fault, fix = played.fault
        if fault:
            if fault not in reasons:
                yield CheckResult("FAIL", "environment", f"{played.where} ends with a fault: {fault}", fix)
            reasons.add(fault)
            if played.seconds > SLOW_S:  # the others may be as slow
                return
            continue
        player.tried.append(played)
        scores[what] = played.final.reward
        yield from _check_results(player.environment, played)
        if player.slow:
            got = f"{played.where} takes {played.seconds:.0f} s"
            fix = "use a quicker tool, or environment.tool_timeout_s=5"
            if player.sessions.holds().get("silent_s", 0) > SLOW_S / 2:
                got = f"{got}, in which no other episode goes on"
                fix = "await what takes long, or leave async out, and it runs in a thread"
            yield CheckResult("WARN", "environment", f"{got}; leaks were not looked for", fix)
            break  # the others may be as slow
    numbers = {what: score for what, score in scores.items() if score is not None}
    yield from _check_ranking(player, row, numbers)
    yield from _check_after_calls([played for played in player.tried if played.row is row], numbers)
    unscored = [what for what, score in scores.items() if score is None]
    if unscored and len(unscored) < len(scores):
        fix = "let reward return a number for every answer: None leaves it to the run's reward, which has another scale"
        yield CheckResult("FAIL", "environment", f"{row.where}: {unscored[0]} has the reward None", fix)


def _check_results(environment: Environment, played: Played) -> Iterator[CheckResult]:
    """Warn of tools whose results are cut."""
    limit = environment.max_result_characters
    for use in (use for observation in played.observations for use in observation.uses):
        if len(use.result) >= limit:
            got = f"tool {use.name} gives more than {limit:,} characters, which are cut"
            yield CheckResult("WARN", "environment.max_result_characters", got, "let it give less at once")


def _check_repeats(player: Player) -> Iterator[CheckResult]:
    """Check that repeated episodes are equal while others run: no state may be shared between them."""
    for first, second in player.again():
        fault, fix = second.fault
        if fault:
            got = f"{first.where} ends with a fault while other episodes run: {fault}"
            yield CheckResult("FAIL", "environment", got, fix)
            return
        if change := first.change(second):
            when, fix = "while others run", "keep what is of one episode in self, not in the class or the module"
            if first.change(player.play(first.row, first.turns)):
                when = "in a second session"
                fix = "let reset depend on the row alone, and draw random numbers from a seed that is the row's"
            yield CheckResult("FAIL", "environment", f"{first.where} gives another {change} {when}", fix)
            return


def _check_ranking(player: Player, row: Row, scores: Mapping[str, float]) -> Iterator[CheckResult]:
    """Check that the right answer, in some form, scores above meaningless ones."""
    nothing = {what: scores[what] for what in NOTHING if what in scores}
    if TRUTH not in scores or not nothing or (right := scores[TRUTH]) > (baseline := max(nothing.values())):
        return
    if any(_tells_apart(player, row, form, baseline) for form in FORMS):
        return
    better = next(what for what, score in nothing.items() if score >= right)
    got = f"{better} scores {compact(nothing[better])}, the ground truth {compact(right)}"
    if right != nothing.get(MEANINGLESS):
        yield CheckResult("FAIL", "environment", f"{row.where}: {got}", "let the right answer score most")
    elif len({*scores.values()}) == 1:  # else the form of right answers, or the tool that takes them, is unknown
        got, fix = (
            f"{got}, and so does all else",
            "let reward compare the answer with the ground truth, unless a tool takes the answer",
        )
        yield CheckResult("WARN", "environment", got, fix)


def _check_after_calls(tried: Sequence[Played], scores: Mapping[str, float]) -> Iterator[CheckResult]:
    """Warn of tools after whose results the right answer counts no more than an empty one: a fault may be swallowed."""
    least, right = (scores.get(what, math.nan) for what in (next(iter(NOTHING)), TRUTH))
    for played in tried:
        after, uses = scores.get(played.what, math.nan), [use for one in played.observations for use in one.uses]
        is_answered = len(played.observations) > len(played.turns) and played.turns[-1].content
        if right > least >= after and is_answered and uses and not any(use.error for use in uses):
            got = f"the right answer scores {compact(right)} alone, and {compact(after)} after {played.what}"
            fix = "let what fails in a tool out of it, as no fault may become a score; a tool that answers may stay so"
            yield CheckResult("WARN", "environment", got, fix)


def _tells_apart(player: Player, row: Row, form: str, baseline: float) -> bool:
    """Whether the ground truth in this form scores above `baseline`, and above nonsense in the same form."""
    texts = [form.format(text) for text in (row.ground_truth, NONSENSE)]
    right, wrong = (player.play(row, [Spoken(text, text)]).final.reward for text in texts)
    return right is not None and right > max(baseline, baseline if wrong is None else wrong)


def _check_leaks(player: Player, *, rows: Sequence[Row], many: int) -> Iterator[CheckResult]:
    """Play sessions one after the other: the memory, files, threads and children of their processes must not grow."""
    turns = list(probes(player.environment, rows[0]).values())

    def play(times: int, most_s: float) -> tuple[int, float]:
        seconds = 0.0
        for index in range(times):
            if seconds > most_s:
                return index, seconds
            seconds += player.play(rows[index % len(rows)], turns[index % len(turns)]).seconds
        return times, seconds

    play(many // 4, LEAKS_S / 4)
    before = player.sessions.holds()
    (many, seconds), after = play(many, LEAKS_S), player.sessions.holds()
    for what, allowed in (("bytes", MEMORY), ("files", FILES), ("threads", FILES), ("children", 0)):
        if (growth := after.get(what, 0) - before.get(what, 0)) > allowed:
            got = f"{many:,} sessions leave {growth:,} {what} behind"
            yield CheckResult("FAIL", "environment", got, "let close() free what an episode holds")
    rate = many / max(seconds, 1e-9)
    got = f"{f'{rate:,.0f}' if rate >= 10 else compact(rate)} sessions a second, one after the other"
    if rate >= 1:
        yield CheckResult("OK", "environment", got)
    else:
        yield CheckResult("WARN", "environment", got, "let its methods wait less, or use more environment.workers")


def _check_without_files(player: Player) -> Iterator[CheckResult]:
    """Check that episodes without any file or connection are equal to those before, or are faults."""
    player.sessions.starve()
    for first, second in player.again():
        change = first.change(second)
        if change and not second.fault[0] and not any(use.error for one in second.observations for use in one.uses):
            got = f"{first.what} gives another {change} where no file and no connection can be opened"
            yield CheckResult("FAIL", "environment", got, "let such errors out of it: a fault must not become a score")
            return


def _check_lengths(context: Context, tried: Sequence[Played]) -> Iterator[CheckResult]:
    """Compare the tokens of the longest tool result, once per turn, with the longest answer allowed."""
    run = context.run
    texts = [message.content for played in tried for step in played.observations for message in step.messages]
    if not texts:
        return
    try:
        with TextProcess(run.model, run.data) as text:
            longest = max(map(text.tokens, texts))
    except Problems:  # the check of lengths reports it
        return
    turns, limit = run.environment.max_turns, run.data.max_response_length
    if longest * (turns - 1) > limit:
        got = f"{limit} tokens, and {turns - 1} results of {longest} tokens would be more"
        fix = f"use data.max_response_length={2 * longest * turns}, or fewer environment.max_turns"
        yield CheckResult("WARN", "data.max_response_length", got, fix)
