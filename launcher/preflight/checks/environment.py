"""An environment tried on a few rows before a run trains in it: the same row gives the same, nothing leaks, every
answer is scored or is a fault, and a fault is never a score."""

from __future__ import annotations

import json
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
from launcher.core.check_result import CheckResult
from launcher.core.numbers import compact
from launcher.core.problems import Problems
from launcher.preflight.checks.context import Context
from launcher.spec.data import Row
from launcher.spec.environment import TRUSTED, Environment, Final, Observation, Outcome, Sessions, Spoken, ToolCall
from launcher.text.process import TextProcess

T = TypeVar("T")
MEANINGLESS, NONSENSE = "a nonsensical answer", "qx zv 7q"
ROWS, SESSIONS = 2, 40
"""What a plan tries; `rlrun env check` tries more."""
MEMORY, FILES = 24 * 2**20, 12
"""Growth by which sessions leak, over all that were tried."""
LEAKS_S = 20.0  # after which no further session is played to find leaks
SLOW_S = 5.0
TOGETHER = 16  # episodes
ROWS_S = 10.0  # after which no further row is tried
VALUES: Mapping[str, Any] = {"integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}
"""A value of each type that a schema may name; a text otherwise."""
TRUTH = "the ground truth"
FORMS = ("#### {}", "\\boxed{{{}}}", "<answer>{}</answer>")
"""In which a ground truth may count, where it does not as it is."""
NOTHING: Mapping[str, Sequence[Spoken]] = {
    "an empty answer": [Spoken("", "")],
    MEANINGLESS: [Spoken(NONSENSE, NONSENSE)],
    "an unreadable call": [Spoken("<tool_call>{", "", unreadable="it has no end"), Spoken("", "")],
}
"""Turns of a policy that knows nothing."""


@dataclass(frozen=True)
class Played:
    """An episode of given turns."""

    observations: tuple[Observation, ...]
    final: Final
    seconds: float

    @property
    def outcome(self) -> Outcome:
        return self.observations[-1].ended or "turn-limit"

    @property
    def fault(self) -> str:
        """Why it has no score; empty where it has one, or the run's reward gives it."""
        return self.observations[-1].reason or self.outcome if not TRUSTED[self.outcome] else self.final.fault

    @property
    def remedy(self) -> str:
        """What to use against the fault."""
        if TRUSTED[self.outcome]:
            return "let reward give a finite number for every answer, and close() end"
        if len(self.observations) == 1:
            return "let reset work for every row"
        return "let what the policy did wrong be a ValueError, KeyError or a text, and repair what fails by itself"

    @property
    def seen(self) -> Mapping[str, Any]:
        """All that must be equal in an equal episode."""
        names = {"text": "messages", "end": "ended", "reward of a turn": "reward", "state": "state"}
        turns = {what: [vars(one)[name] for one in self.observations] for what, name in names.items()}
        return {**turns, "score": self.final.reward, "part of the score": dict(self.final.parts)}

    def change(self, other: Played) -> str:
        """What is not equal in another episode; empty where all is."""
        return next((name for name, value in self.seen.items() if value != other.seen[name]), "")


@dataclass(frozen=True)
class Tried:
    row: Row
    what: str
    turns: Sequence[Spoken]
    played: Played

    @property
    def where(self) -> str:
        return f"{self.row.where}: {self.what}"


class Player:
    """Plays episodes of given turns in an environment's processes."""

    def __init__(self, environment: Environment, sessions: Sessions, tried: list[Tried] | None = None) -> None:
        self.environment, self.sessions, self.numbers = environment, sessions, count(1)
        self.tried = [] if tried is None else tried

    def play(self, row: Row, turns: Sequence[Spoken]) -> Played:
        return self.play_together([(row, turns)])[0]

    def play_together(self, asked: Sequence[tuple[Row, Sequence[Spoken]]]) -> list[Played]:
        """Episodes that run at the same time, turn by turn."""
        begun = time.monotonic()
        late = Observation(ended="timeout", reason="no answer in time")
        numbers = [next(self.numbers) for _ in asked]
        begins = [self.sessions.begin(number, row) for number, (row, _) in zip(numbers, asked, strict=True)]
        seen = [[self._of(begin, late)] for begin in begins]
        for at in range(max(len(turns) for _, turns in asked)):
            steps = [
                (of, self.sessions.step(number, turns[at]))
                for number, of, (_, turns) in zip(numbers, seen, asked, strict=True)
                if at < len(turns) and not of[-1].ended
            ]
            for of, step in steps:
                of.append(self._of(step, late))
        ends = [
            self.sessions.end(number, of[-1].ended or "turn-limit") for number, of in zip(numbers, seen, strict=True)
        ]
        finals = [self._of(end, Final(fault="its end took too long")) for end in ends]
        seconds = time.monotonic() - begun
        return [Played(tuple(of), final, seconds) for of, final in zip(seen, finals, strict=True)]

    def again(self) -> Iterator[tuple[Tried, Played]]:
        """All that was tried, once more: many episodes of different rows at the same time."""
        parts = -(-len(self.tried) // TOGETHER)
        for some in (self.tried[part::parts] for part in range(parts)):
            yield from zip(some, self.play_together([(one.row, one.turns) for one in some]), strict=True)

    def _of(self, future: Future[T], late: T) -> T:
        try:
            return future.result(min(self.environment.timeout_s, SLOW_S) + self.environment.tool_timeout_s)
        except LateResult:
            return late


def probes(environment: Environment, row: Row) -> dict[str, Sequence[Spoken]]:
    """Turns of a policy that knows nothing, that errs, and, where the row has a ground truth, of one that is right."""
    found = dict(NOTHING)
    if environment.tools():
        found["an unknown tool"] = [_calling("no_such_tool", {}), Spoken("", "")]
    for schema in environment.tools():
        function = schema["function"]
        known = function["parameters"]
        made = {name: _value(of, known) for name, of in known.get("properties", {}).items()}
        found[f"{function['name']}({json.dumps(made)})"] = [_calling(function["name"], made), Spoken("", "")]
        found[f"{function['name']} with wrong arguments"] = [_calling(function["name"], {"no_such": 1}), Spoken("", "")]
    if row.ground_truth is not None:
        found[TRUTH] = [Spoken(row.ground_truth, row.ground_truth)]
    return found


def _value(of: Mapping[str, Any], whole: Mapping[str, Any]) -> Any:
    """One that a schema takes; `whole` has its definitions."""
    if "$ref" in of:
        return _value(reduce(getitem, of["$ref"].strip("#/").split("/"), whole), whole)
    if "anyOf" in of:
        return _value(of["anyOf"][0], whole)
    if "properties" in of:
        return {name: _value(of["properties"][name], whole) for name in of.get("required", ())}
    kinds = of.get("type", "string")
    values = [*of.get("enum", ()), of.get("const"), VALUES.get(kinds if isinstance(kinds, str) else kinds[0], "a")]
    return next(value for value in values if value is not None)


def _calling(name: str, arguments: Mapping[str, Any]) -> Spoken:
    return Spoken("", "", (ToolCall(name, arguments, "call00000"),))


def check(context: Context) -> Iterator[CheckResult]:
    """A small trial; nothing of an environment of one turn, or one that has problems of its own."""
    run = context.run
    if not run.environment.several_turns or context.reward_problems or run.environment.missing_requirements():
        return
    if rows := context.train.rows[:ROWS]:
        activity.report("trying the environment")
        tried = list[Tried]()
        yield from try_environment(run.environment, rows, SESSIONS, tried)
        if not context.model_problems:
            yield from _lengths(context, tried)


def try_environment(
    environment: Environment, rows: Sequence[Row], many: int, tried: list[Tried] | None = None
) -> Iterator[CheckResult]:
    """All that was found; one result says that all is well. What was played comes to `tried`."""
    sessions = environment.sessions()
    try:
        player, found, begun = Player(environment, sessions, tried), list[CheckResult](), time.monotonic()
        for row in rows:
            found += _row(player, row)
            if _failed(found) or time.monotonic() - begun > ROWS_S:
                break
        for look in (_again, partial(_leaks, rows=rows, many=many), _starved):
            found += [] if _failed(found) else look(player)
        yield from _once(found)
        if all(one.level == "OK" for one in found):
            kinds = len(probes(environment, rows[0]))
            tried_rows = len({one.row.where for one in player.tried})
            got = f"{kinds} kinds of answers on {tried_rows} rows: each has an equal score a second time"
            yield CheckResult("OK", "environment", got)
    finally:
        sessions.close()


def _failed(found: Sequence[CheckResult]) -> bool:
    return any(one.level == "FAIL" for one in found)


def _once(found: Sequence[CheckResult]) -> list[CheckResult]:
    return list({(one.level, one.subject, one.message): one for one in found}.values())


def _row(player: Player, row: Row) -> Iterator[CheckResult]:
    """Each probe on one row."""
    scores, reasons = dict[str, float | None](), set[str]()
    for what, turns in probes(player.environment, row).items():
        one = player.play(row, turns)
        where = f"{row.where}: {what}"
        if one.fault:
            if one.fault not in reasons:
                yield CheckResult("FAIL", "environment", f"{where} ends with a fault: {one.fault}", one.remedy)
            reasons.add(one.fault)
            if one.seconds > SLOW_S:  # so may all others be
                return
            continue
        player.tried.append(Tried(row, what, turns, one))
        scores[what] = one.final.reward
        yield from _cut(player.environment, one)
    if slow := [one for one in player.tried[1:] if one.row is row and one.played.seconds > SLOW_S]:
        got = f"{slow[0].where} takes {slow[0].played.seconds:.0f} s"  # the first of all starts a process
        yield CheckResult("WARN", "environment", got, "use a quicker tool, or environment.tool_timeout_s=5")
    yield from _ranks(player, row, {what: score for what, score in scores.items() if score is not None})
    unscored = [what for what, score in scores.items() if score is None]
    if unscored and len(unscored) < len(scores):
        fix = "let reward return a number for every answer: None leaves it to the run's reward, which has another scale"
        yield CheckResult("FAIL", "environment", f"{row.where}: {unscored[0]} has the reward None", fix)


def _again(player: Player) -> Iterator[CheckResult]:
    """The same again, while others run: nothing of one episode may reach another."""
    for one, other in player.again():
        if other.fault:
            got = f"{one.where} ends with a fault while other episodes run: {other.fault}"
            yield CheckResult("WARN", "environment", got, other.remedy)
            return
        if changed := one.played.change(other):
            single = player.play(one.row, one.turns)
            when, fix = "while others run", "keep what is of one episode in self, not in the class or the module"
            if one.played.change(single):
                when = "in a second session"
                fix = "let reset depend on the row alone, and draw random numbers from a seed that is the row's"
            yield CheckResult("FAIL", "environment", f"{one.where} gives another {changed} {when}", fix)
            return


def _cut(environment: Environment, played: Played) -> Iterator[CheckResult]:
    most = environment.max_result_characters
    for use in (use for one in played.observations for use in one.uses):
        if len(use.result) >= most:
            got = f"tool {use.name} gives more than {most:,} characters, which are cut"
            yield CheckResult("WARN", "environment.max_result_characters", got, "let it give less at once")


def _ranks(player: Player, row: Row, scores: Mapping[str, float]) -> Iterator[CheckResult]:
    """Whether the right answer, in some form, is above what says nothing."""
    nothing = {what: scores[what] for what in NOTHING if what in scores}
    if TRUTH not in scores or not nothing or (right := scores[TRUTH]) > (most := max(nothing.values())):
        return
    texts = [form.format(row.ground_truth) for form in FORMS]
    others = [player.play(row, [Spoken(text, text)]).final.reward for text in texts]
    if right == nothing.get(MEANINGLESS) or any(score is not None and score > most for score in others):
        return  # it is not known how a right answer looks, or it is one of these
    above = next(what for what, score in nothing.items() if score >= right)
    got = f"{row.where}: {above} scores {compact(nothing[above])}, the ground truth {compact(right)}"
    yield CheckResult("FAIL", "environment", got, "let the right answer score most")


def _leaks(player: Player, *, rows: Sequence[Row], many: int) -> Iterator[CheckResult]:
    """Sessions one after the other: what their processes hold must not grow."""
    turns = list(probes(player.environment, rows[0]).values())

    def play(times: int, most_s: float) -> tuple[int, float]:
        seconds = 0.0
        for at in range(times):
            if seconds > most_s:
                return at, seconds
            seconds += player.play(rows[at % len(rows)], turns[at % len(turns)]).seconds
        return times, seconds

    play(many // 4, LEAKS_S / 4)
    before = player.sessions.holds()
    (many, seconds), after = play(many, LEAKS_S), player.sessions.holds()
    for what, most in (("bytes", MEMORY), ("files", FILES), ("threads", FILES), ("children", 0)):
        if (more := after.get(what, 0) - before.get(what, 0)) > most:
            got = f"{many:,} sessions leave {more:,} {what} behind"
            yield CheckResult("FAIL", "environment", got, "let close() free what an episode holds")
    yield CheckResult("OK", "environment", f"{many / max(seconds, 1e-9):,.0f} sessions a second, one after the other")


def _starved(player: Player) -> Iterator[CheckResult]:
    """The same episodes while nothing can be opened: they are the same, or they are faults."""
    player.sessions.starve()
    for one, played in player.again():
        changed = one.played.change(played)
        if changed and not played.fault and not _errors(played):
            got = f"{one.what} gives another {changed} where no file and no connection can be opened"
            yield CheckResult("FAIL", "environment", got, "let such errors out of it: a fault must not become a score")
            return


def _errors(played: Played) -> bool:
    return any(use.error for one in played.observations for use in one.uses)


def _lengths(context: Context, tried: Sequence[Tried]) -> Iterator[CheckResult]:
    """Tokens of the longest result that was seen, as often as there are turns, against the longest answer."""
    run = context.run
    texts = [message.content for one in tried for seen in one.played.observations for message in seen.messages]
    if not texts:
        return
    try:
        with TextProcess(run.model, run.data) as text:
            longest = max(map(text.tokens, texts))
    except Problems:  # named by the lengths of the rows
        return
    turns, most = run.environment.max_turns, run.data.max_response_length
    if longest * (turns - 1) > most:
        got = f"{most} tokens, and {turns - 1} results of {longest} tokens would be more"
        fix = f"use data.max_response_length={2 * longest * turns}, or fewer environment.max_turns"
        yield CheckResult("WARN", "data.max_response_length", got, fix)
