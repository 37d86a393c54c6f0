"""An environment tried on a few rows before a run trains in it: the same row gives the same, nothing leaks, every
answer is scored or is a fault, and a fault is never a score."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateResult
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, TypeVar

from launcher.core import activity
from launcher.core.check_result import CheckResult
from launcher.core.numbers import compact
from launcher.core.problems import Problems, short_repr
from launcher.preflight.checks.context import Context
from launcher.spec.data import Row
from launcher.spec.environment import TRUSTED, Environment, Final, Observation, Outcome, Sessions, Spoken, ToolCall
from launcher.text.process import TextProcess

T = TypeVar("T")
ROWS, SESSIONS = 2, 40
"""What a plan tries; `rlrun env check` tries more."""
MEMORY, FILES = 24 * 2**20, 12
"""Growth by which sessions leak, over all that were tried."""
LEAKS_S = 20.0  # after which no further session is played to find leaks
SLOW_S = 5.0
VALUES: Mapping[str, Any] = {"string": "a", "integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}
"""A value of each type that a schema may name."""


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


class Player:
    """Plays episodes of given turns in an environment's processes."""

    def __init__(self, environment: Environment, sessions: Sessions) -> None:
        self.environment, self.sessions, self.numbers = environment, sessions, count(1)

    def play(self, row: Row, turns: Sequence[Spoken]) -> Played:
        begun, number = time.monotonic(), next(self.numbers)
        late = Observation(ended="timeout", reason=f"no answer within {self.environment.timeout_s:g} s")
        seen = [self._of(self.sessions.begin(number, row), late)]
        for turn in turns:
            if seen[-1].ended:
                break
            seen.append(self._of(self.sessions.step(number, turn), late))
        outcome = seen[-1].ended or "turn-limit"
        final = self._of(self.sessions.end(number, outcome), Final(fault="its end took too long"))
        return Played(tuple(seen), final, time.monotonic() - begun)

    def _of(self, future: Future[T], late: T) -> T:
        try:
            return future.result(self.environment.timeout_s + self.environment.tool_timeout_s)
        except LateResult:
            return late


def probes(environment: Environment, row: Row) -> dict[str, list[Spoken]]:
    """Turns of a policy that knows nothing, that errs, and, where the row has a ground truth, of one that is right."""
    found = {
        "an empty answer": [Spoken("", "")],
        "a nonsensical answer": [Spoken("qx zv 7q", "qx zv 7q")],
        "an unreadable call": [Spoken("<tool_call>{", "", unreadable="it has no end"), Spoken("", "")],
    }
    if environment.tools():
        found["an unknown tool"] = [_calling("no_such_tool", {}), Spoken("", "")]
    for schema in environment.tools():
        function = schema["function"]
        known = function["parameters"].get("properties", {})
        made = {name: VALUES.get(of.get("type", "string"), "a") for name, of in known.items()}
        found[f"{function['name']}({json.dumps(made)})"] = [_calling(function["name"], made), Spoken("", "")]
        found[f"{function['name']} with wrong arguments"] = [_calling(function["name"], {"no_such": 1}), Spoken("", "")]
    if row.ground_truth is not None:
        found["the ground truth"] = [Spoken(row.ground_truth, row.ground_truth)]
    return found


def _calling(name: str, arguments: Mapping[str, Any]) -> Spoken:
    return Spoken("", "", (ToolCall(name, arguments, "call00000"),))


def check(context: Context) -> Iterator[CheckResult]:
    """A small trial; nothing of an environment of one turn, or one that has problems of its own."""
    run = context.run
    if not run.environment.several_turns or context.reward_problems or run.environment.missing_requirements():
        return
    if rows := context.train.rows[:ROWS]:
        activity.report("trying the environment")
        yield from try_environment(run.environment, rows, SESSIONS)
        if not context.model_problems:
            yield from _lengths(context, rows[0])


def try_environment(environment: Environment, rows: Sequence[Row], many: int) -> Iterator[CheckResult]:
    """All that was found; one result says that all is well."""
    sessions = environment.sessions()
    try:
        player, found = Player(environment, sessions), list[CheckResult]()
        for row in rows:
            found += _row(player, row)
            if any(one.level == "FAIL" for one in found):
                break
        if not found or all(one.level != "FAIL" for one in found):
            found += _leaks(player, rows, many)
            found += _starved(player, rows[0])
        yield from _once(found)
        if all(one.level == "OK" for one in found):
            tried = len(probes(environment, rows[0]))
            got = f"{tried} kinds of answers on {len(rows)} rows: each has an equal score a second time"
            yield CheckResult("OK", "environment", got)
    finally:
        sessions.close()


def _once(found: Sequence[CheckResult]) -> list[CheckResult]:
    return list({(one.level, one.subject, one.message): one for one in found}.values())


def _row(player: Player, row: Row) -> Iterator[CheckResult]:
    """Each probe twice, on one row."""
    scores, reasons = dict[str, float](), set[str]()
    for what, turns in probes(player.environment, row).items():
        one = player.play(row, turns)
        other = one if one.fault else player.play(row, turns)
        where = f"{row.where}: {what}"
        if fault := other.fault:
            if fault not in reasons:
                yield CheckResult("FAIL", "environment", f"{where} ends with a fault: {fault}", other.remedy)
            reasons.add(fault)
            if other.seconds > SLOW_S:  # so may all others be
                return
        elif changed := [name for name in one.seen if one.seen[name] != other.seen[name]]:
            fix = "let reset depend on the row alone, and draw random numbers from a seed that is the row's"
            got = f"{where} gives another {changed[0]} in a second session"
            yield CheckResult("FAIL", "environment", got, fix)
            return
        elif min(one.seconds, other.seconds) > SLOW_S:  # the first of all starts a process
            got = f"{where} takes {min(one.seconds, other.seconds):.0f} s"
            yield CheckResult("WARN", "environment", got, "use a quicker tool, or environment.tool_timeout_s=5")
        if one.final.reward is not None and not one.fault:
            scores[what] = one.final.reward
        yield from _cut(player.environment, one)
    yield from _ranks(row, scores)


def _cut(environment: Environment, played: Played) -> Iterator[CheckResult]:
    most = environment.max_result_characters
    for use in (use for one in played.observations for use in one.uses):
        if len(use.result) >= most:
            got = f"tool {use.name} gives more than {most:,} characters, which are cut"
            yield CheckResult("WARN", "environment.max_result_characters", got, "let it give less at once")


def _ranks(row: Row, scores: Mapping[str, float]) -> Iterator[CheckResult]:
    """Whether the right answer is above what says nothing."""
    right = scores.get("the ground truth")
    others = {what: score for what, score in scores.items() if what != "the ground truth"}
    if right is not None and (above := [what for what, score in others.items() if score > right]):
        got = f"{row.where}: {above[0]} scores {compact(others[above[0]])}, the ground truth {compact(right)}"
        yield CheckResult("FAIL", "environment", got, "let the right answer score most")


def _leaks(player: Player, rows: Sequence[Row], many: int) -> Iterator[CheckResult]:
    """Sessions one after the other: what their processes hold must not grow."""
    turns = list(probes(player.environment, rows[0]).values())

    def play(times: int) -> tuple[int, float]:
        seconds = 0.0
        for at in range(times):
            if seconds > LEAKS_S:
                return at, seconds
            seconds += player.play(rows[at % len(rows)], turns[at % len(turns)]).seconds
        return times, seconds

    play(max(many // 4, len(turns)))
    before = player.sessions.holds()
    (many, seconds), after = play(many), player.sessions.holds()
    for what, most in (("bytes", MEMORY), ("files", FILES), ("threads", FILES), ("children", 0)):
        if (more := after.get(what, 0) - before.get(what, 0)) > most:
            got = f"{many:,} sessions leave {more:,} {what} behind"
            yield CheckResult("FAIL", "environment", got, "let close() free what an episode holds")
    yield CheckResult("OK", "environment", f"{many / max(seconds, 1e-9):,.0f} sessions a second, one after the other")


def _starved(player: Player, row: Row) -> Iterator[CheckResult]:
    """The same episodes while nothing can be opened: they are the same, or they are faults."""
    tried = probes(player.environment, row)
    before = {what: player.play(row, turns) for what, turns in tried.items()}
    player.sessions.starve()
    for what, turns in tried.items():
        played = player.play(row, turns)
        if not played.fault and not _errors(played) and played.seen != before[what].seen:
            got = f"{what} scores {short_repr(played.final.reward)} where no file and no connection can be opened"
            yield CheckResult("FAIL", "environment", got, "let such errors out of it: a fault must not become a score")
            return


def _errors(played: Played) -> bool:
    return any(use.error for one in played.observations for use in one.uses)


def _lengths(context: Context, row: Row) -> Iterator[CheckResult]:
    """Tokens of the longest result that was seen, as often as there are turns, against the longest answer."""
    run = context.run
    sessions = replace(run.environment, workers=1).sessions()
    try:
        player = Player(run.environment, sessions)
        played = [player.play(row, turns) for turns in probes(run.environment, row).values()]
    finally:
        sessions.close()
    texts = [message.content for one in played for seen in one.observations for message in seen.messages]
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
