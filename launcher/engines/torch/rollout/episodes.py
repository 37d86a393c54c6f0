"""Episodes of several turns: the policy's turns are generated, an environment answers them, and what was sampled is
never written again.

All episodes that are ready are generated together; while tools work on others, the generator goes on. A fault of the
environment costs one episode, which is sampled anew or left without a score: it is never a score.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field

import numpy as np
import torch

from launcher.engines.torch.parallel import world
from launcher.engines.torch.rollout.generator import Generator, Request
from launcher.spec.data import Row
from launcher.spec.environment import EARLY, TRUSTED, Environment, Final, Observation, Outcome, Sessions, Spoken
from launcher.spec.episode import Episode, Turn
from launcher.text.bridge import Bridge
from launcher.text.encoder import Unwritable

LOOK_S = 0.05  # between two looks at the other processes, where this one waits
_ANEW = 0xD1B54A32D192ED03  # added to an episode's stream where it is sampled anew


@dataclass(frozen=True)
class EpisodeRequest:
    """An episode that is wanted."""

    prompt: list[int]
    row: Row
    key: np.uint64
    """Its random stream: equal keys and observations give equal episodes."""


@dataclass
class Running:
    """An episode that has not ended."""

    asked: EpisodeRequest
    place: int
    number: int
    """Of its session."""
    attempt: int
    waits: Future[Observation]
    turns: list[Turn] = field(default_factory=list)
    spoken: list[Spoken] = field(default_factory=list)
    history: list[dict] = field(default_factory=list)
    """The conversation after the prompt, as a chat template reads it."""
    state: str = ""
    spent_s: float = 0.0
    """Seconds of the environment so far."""
    since: float = field(default_factory=time.monotonic)
    """When the environment was asked last."""

    @property
    def stream(self) -> np.uint64:
        return np.uint64((int(self.asked.key) + _ANEW * self.attempt) % 2**64)

    @property
    def answered(self) -> list[int]:
        return [token for turn in self.turns for token in turn.tokens]

    @property
    def policy_turns(self) -> int:
        return len(self.spoken)


Ending = dict[Future[Final], tuple[Running, Outcome, str]]
"""Episodes that the environment judges, with why they ended."""


@dataclass
class Counts:
    """What is reported of the episodes of a step, in this process."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    """Of the episodes that are kept."""
    faults: Counter[Outcome] = field(default_factory=Counter)
    """Of all that were sampled."""
    prompts: int = 0
    sampled: int = 0
    turns: int = 0
    calls: int = 0
    errors: int = 0
    repeated: int = 0
    """Calls that the same episode had made before, with the same arguments."""
    unreadable: int = 0
    differences: int = 0
    """Turns that the chat template would write otherwise now."""
    tool_s: float = 0.0
    early: int = 0

    def note(self, episode: Episode) -> None:
        assert episode.ended
        self.outcomes[episode.ended] += 1
        self.early += episode.ended in EARLY
        self.turns += len(episode.policy_turns)
        uses = [use for turn in episode.turns for use in turn.uses]
        self.calls += len(uses)
        self.errors += sum(bool(use.error) for use in uses)
        self.repeated += len(uses) - len({(use.name, use.arguments) for use in uses})
        self.tool_s += sum(use.seconds for use in uses)

    def metrics(self) -> dict[str, float]:
        """Over all processes; collective."""
        every = world.all_gather_object(self)
        outcomes = sum((each.outcomes for each in every), Counter[Outcome]())
        faults = sum((each.faults for each in every), Counter[Outcome]())
        names = (
            "prompts", "sampled", "turns", "calls", "errors", "repeated", "unreadable", "differences", "tool_s",
            "early",
        )  # fmt: skip
        total = {name: float(sum(getattr(each, name) for each in every)) for name in names}
        episodes, calls = max(sum(outcomes.values()), 1), max(total["calls"], 1)
        found = {
            "agent/prompts": total["prompts"],
            "agent/episodes": float(sum(outcomes.values())),
            "agent/turns/mean": total["turns"] / episodes,
            "agent/calls/mean": total["calls"] / episodes,
            "agent/tool_errors/share": total["errors"] / calls,
            "agent/repeated_calls/share": total["repeated"] / calls,
            "agent/unreadable_calls/mean": total["unreadable"] / episodes,
            "agent/rewritten_turns/mean": total["differences"] / episodes,
            "agent/tool_s/mean": total["tool_s"] / calls,
            "agent/faults/share": sum(faults.values()) / max(total["sampled"], 1),
            "train/num_early_exit": total["early"],
        }
        return found | {f"agent/outcome/{name}/share": outcomes[name] / episodes for name in TRUSTED}


class EpisodeRunner:
    """Samples episodes of an environment. Its methods are collective, as the generator's are."""

    def __init__(self, generator: Generator, environment: Environment, sessions: Sessions, bridge: Bridge) -> None:
        self.generator, self.environment, self.sessions, self.bridge = generator, environment, sessions, bridge
        self.counts, self._number = Counts(), 0

    def close(self) -> None:
        self.sessions.close()

    def pop_metrics(self) -> dict[str, float]:
        """Of all episodes since it was last called; collective."""
        counts, self.counts = self.counts, Counts()
        return counts.metrics()

    def run(self, asked: Sequence[EpisodeRequest], temperature: float) -> list[Episode]:
        """The episodes in order, each with the environment's score, NaN where the run's reward is to score its last
        turn. What a fault ended has a reason in `fault`, and no turn may be left of it."""
        found: list[Episode | None] = [None] * len(asked)
        ending: Ending = {}
        running = [self._begin(one, place, 0) for place, one in enumerate(asked)]
        while self._any(bool(running or ending)):
            ready = self._ready(running, ending)
            for one, episode in self._ended(ending):
                if episode.fault and one.attempt < self.environment.refills:
                    running.append(self._begin(one.asked, one.place, one.attempt + 1))
                else:
                    found[one.place] = episode
                    self.counts.note(episode)
            if self._any(bool(ready)):
                running += self._speak(ready, temperature)
            else:
                self._wait(running, ending)
        return [episode for episode in found if episode]

    def _ready(self, running: list[Running], ending: Ending) -> list[Running]:
        """Take from `running` those to which the environment has answered: what they can go on with is returned, and
        those that have ended come to `ending`."""
        ready = list[Running]()
        for one in [one for one in running if one.waits.done() or self._left_s(one) <= 0]:
            running.remove(one)
            outcome, reason = self._observe(one)
            if outcome is None:
                ready.append(one)
            else:
                self.generator.forget(one.stream)
                ending[self.sessions.end(one.number, outcome)] = one, outcome, reason
        return ready

    def _ended(self, ending: Ending) -> Iterator[tuple[Running, Episode]]:
        """Take from `ending` those that the environment has judged."""
        for future in [future for future in ending if future.done()]:
            one, outcome, reason = ending.pop(future)
            yield one, self._episode(one, outcome, reason, future.result())

    # ---- one episode

    def _begin(self, asked: EpisodeRequest, place: int, attempt: int) -> Running:
        self._number += 1
        self.counts.sampled += 1
        return Running(asked, place, self._number, attempt, self.sessions.begin(self._number, asked.row))

    def _left_s(self, one: Running) -> float:
        """Seconds that the environment may still take for this episode."""
        return self.environment.timeout_s - one.spent_s - (time.monotonic() - one.since)

    def _observe(self, one: Running) -> tuple[Outcome | None, str]:
        """Take what the environment says. Returns why the episode has ended, if it has, in a word and in words."""
        if not one.waits.done():
            return (
                "timeout",
                f"the environment took longer than {self.environment.timeout_s:g} s (environment.timeout_s)",
            )
        one.spent_s += time.monotonic() - one.since
        seen = one.waits.result()
        one.state = seen.state
        if one.spoken:
            last = one.turns[-1]
            one.turns[-1] = Turn(**{**vars(last), "reward": seen.reward, "uses": seen.uses})
        if seen.ended or not one.spoken:
            return seen.ended, seen.reason
        spoken = one.spoken[-1]
        if spoken.cut:
            return "token-limit", ""
        if one.policy_turns == self.environment.max_turns:
            return "turn-limit", ""
        messages = [message.node for message in seen.messages]
        try:
            ids, rewritten = self.bridge.observation_ids(one.asked.row, one.history, messages, one.turns[-1].tokens)
        except Unwritable as error:
            return "environment-fault", str(error)
        if len(one.answered) + len(ids) >= self.generator.max_new:
            return "token-limit", ""
        one.history += messages
        self.counts.differences += rewritten
        one.turns.append(Turn(ids, "environment", text="\n".join(message.content for message in seen.messages)))
        return None, ""

    def _speak(self, ready: Sequence[Running], temperature: float) -> list[Running]:
        """The next turn of these episodes, and the environment asked about it. Collective."""
        requests = []
        for one in ready:
            prompt, answered = one.asked.prompt + one.answered, len(one.answered)
            requests.append(Request(prompt, np.array([one.stream]), temperature, answered, goes_on=True))
        episodes = self.generator.answer(requests)
        texts = self.generator.texts(episodes) if episodes else []
        for one, episode, text in zip(ready, episodes, texts, strict=True):
            (turn,) = episode.turns
            spoken = self.bridge.read(text, cut=turn.stop == "length")
            self.counts.unreadable += bool(spoken.unreadable)
            one.turns.append(Turn(**{**vars(turn), "text": text, "state": one.state}))
            one.spoken.append(spoken)
            one.history.append(self.bridge.turn_of(spoken))
            one.since, one.waits = time.monotonic(), self.sessions.step(one.number, spoken)
        return list(ready)

    def _episode(self, one: Running, outcome: Outcome, reason: str, final: Final) -> Episode:
        fault = reason or outcome if not TRUSTED[outcome] else final.fault
        if fault:
            self.counts.faults[outcome if not TRUSTED[outcome] else "environment-fault"] += 1
        while one.turns and one.turns[-1].writer != "policy":
            one.turns.pop()  # nothing of the policy follows it
        empty = [] if one.turns else [self._nothing(one)]
        reward = math.nan if fault or final.reward is None else final.reward
        return Episode(
            one.asked.prompt, (*one.turns, *empty), reward=reward, parts={} if fault else final.parts, ended=outcome,
            fault=fault, facts=final.facts,
        )  # fmt: skip

    def _nothing(self, one: Running) -> Turn:
        """One token that no loss looks at, in place of the turns of an episode that could not begin."""
        return Turn(
            [self.generator.model.eos[0]], "policy", stop="end", mask=[0], versions=[self.generator.model.version]
        )

    # ---- all of them

    def _any(self, here: bool) -> bool:
        """Whether it is so in any process; collective."""
        if world.SIZE == 1:
            return here
        return bool(world.all_reduce_max(torch.tensor(float(here), device=self.generator.model.device)).item())

    def _wait(self, running: Sequence[Running], ending: Mapping[Future[Final], object]) -> None:
        """Until something is there, here or in another process, or an episode has used its time."""
        if not running and not ending:
            return time.sleep(LOOK_S)
        most = min((self._left_s(one) for one in running), default=math.inf)
        most = min(most, LOOK_S) if world.SIZE > 1 else most
        futures: Iterator[Future] = iter([*(one.waits for one in running), *ending])
        wait(futures, None if most == math.inf else max(most, 0), FIRST_COMPLETED)
        return None
