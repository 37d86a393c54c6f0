"""Episodes of several turns: the policy's turns are generated, an environment answers them, and sampled tokens are
never rewritten.

The turns of all ready episodes are generated together, while tools work on the others. A fault of the environment costs
one episode, which is sampled again or left without a score; a fault is never scored.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
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

LOOK_S = 0.05  # between two polls of the other processes, while this one waits
_RESAMPLE_STEP = 0xD1B54A32D192ED03  # added to an episode's stream each time it is sampled again


@dataclass(frozen=True)
class Prompt:
    """A prompt that is to be answered once for each of its random streams."""

    ids: list[int]
    row: Row
    keys: np.ndarray
    """[n] uint64: equal keys and observations give equal episodes."""


@dataclass
class Running:
    """An episode that has not ended."""

    prompt: Prompt
    key: np.uint64
    place: int
    number: int
    """Number of its session."""
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
        return np.uint64((int(self.key) + _RESAMPLE_STEP * self.attempt) % 2**64)

    @property
    def answered(self) -> list[int]:
        return [token for turn in self.turns for token in turn.tokens]

    @property
    def policy_turns(self) -> int:
        return len(self.spoken)


Ending = dict[Future[Final], tuple[Running, Outcome, str]]
"""Ended episodes that the environment is scoring, with why they ended."""


Counts = defaultdict[str, float]
"""Sums over a step's episodes, in this process: outcomes, turns and calls of those that are kept; prompts, faults,
unreadable calls and rewritten turns of all that were sampled."""


def _count_episode(counts: Counts, episode: Episode) -> None:
    uses = [use for turn in episode.turns for use in turn.uses]
    counts["kept"] += 1
    counts[f"outcome/{episode.ended}"] += 1
    counts["early"] += episode.ended in EARLY
    counts["turns"] += len(episode.policy_turns)
    counts["calls"] += len(uses)
    counts["errors"] += sum(bool(use.error) for use in uses)
    counts["repeated"] += len(uses) - len({(use.name, use.arguments) for use in uses})
    counts["tool_s"] += sum(use.seconds for use in uses)


def _count_metrics(counts: Counts) -> dict[str, float]:
    """Metrics over all processes; collective."""
    total = Counts(float)
    for each in world.all_gather_object(dict(counts)):
        for name, count in each.items():
            total[name] += count
    episodes, calls = max(total["kept"], 1), max(total["calls"], 1)
    metrics = {
        "agent/prompts": total["prompts"],
        "agent/episodes": total["kept"],
        "agent/turns/mean": total["turns"] / episodes,
        "agent/calls/mean": total["calls"] / episodes,
        "agent/tool_errors/share": total["errors"] / calls,
        "agent/repeated_calls/share": total["repeated"] / calls,
        "agent/unreadable_calls/mean": total["unreadable"] / episodes,
        "agent/rewritten_turns/mean": total["rewritten"] / episodes,
        "agent/tool_s/mean": total["tool_s"] / calls,
        "agent/faults/share": total["faults"] / max(total["sampled"], 1),
        "train/num_early_exit": total["early"],
    }
    return metrics | {f"agent/outcome/{name}/share": total[f"outcome/{name}"] / episodes for name in TRUSTED}


class EpisodeRunner:
    """Samples episodes of an environment. Its methods are collective, as the generator's are."""

    def __init__(self, generator: Generator, environment: Environment, sessions: Sessions, bridge: Bridge) -> None:
        self.generator, self.environment, self.sessions, self.bridge = generator, environment, sessions, bridge
        self.counts, self._last_number = Counts(float), 0

    def close(self) -> None:
        self.sessions.close()

    def pop_metrics(self) -> dict[str, float]:
        """Metrics of all episodes since the last call; collective."""
        counts, self.counts = self.counts, Counts(float)
        return _count_metrics(counts)

    def run(self, prompts: Sequence[Prompt], temperature: float) -> list[Episode]:
        """The episodes, prompt by prompt, each with the environment's score, or NaN where the run's reward scores
        the last turn. One that a fault ended has its reason in `fault`, and may have a placeholder as its only turn."""
        self.counts["prompts"] += len(prompts)
        asked = [(prompt, key) for prompt in prompts for key in prompt.keys]
        episodes: list[Episode | None] = [None] * len(asked)
        ending: Ending = {}
        running = [self._begin(*one, place, 0) for place, one in enumerate(asked)]
        while self._any_process(bool(running or ending)):
            ready = self._take_ready(running, ending)
            for one, episode in self._take_ended(ending):
                if episode.fault and one.attempt < self.environment.refills:
                    running.append(self._begin(one.prompt, one.key, one.place, one.attempt + 1))
                else:
                    episodes[one.place] = episode
                    _count_episode(self.counts, episode)
            if self._any_process(bool(ready)):
                running += self._generate_turns(ready, temperature)
            else:
                self._wait(running, ending)
        return [episode for episode in episodes if episode]

    def _take_ready(self, running: list[Running], ending: Ending) -> list[Running]:
        """Take from `running` the episodes whose environment has answered or timed out. Those that continue are
        returned; those that have ended are added to `ending`."""
        ready = list[Running]()
        for one in [one for one in running if one.waits.done() or self._seconds_left(one) <= 0]:
            running.remove(one)
            outcome, reason = self._observe(one)
            if outcome is None:
                ready.append(one)
            else:
                self.generator.forget(one.stream)
                ending[self.sessions.end(one.number, outcome)] = one, outcome, reason
        return ready

    def _take_ended(self, ending: Ending) -> Iterator[tuple[Running, Episode]]:
        """Take from `ending` the episodes that the environment has scored."""
        for future in [future for future in ending if future.done()]:
            one, outcome, reason = ending.pop(future)
            yield one, self._finish_episode(one, outcome, reason, future.result())

    # ---- one episode

    def _begin(self, prompt: Prompt, key: np.uint64, place: int, attempt: int) -> Running:
        self._last_number += 1
        self.counts["sampled"] += 1
        waits = self.sessions.begin(self._last_number, prompt.row)
        return Running(prompt, key, place, self._last_number, attempt, waits)

    def _seconds_left(self, one: Running) -> float:
        """Seconds that the environment may still take for this episode."""
        return self.environment.timeout_s - one.spent_s - (time.monotonic() - one.since)

    def _observe(self, one: Running) -> tuple[Outcome | None, str]:
        """Record the environment's observation. Returns why the episode has ended (None if not), and a reason."""
        if not one.waits.done():
            return (
                "timeout",
                f"the environment took longer than {self.environment.timeout_s:g} s (environment.timeout_s)",
            )
        one.spent_s += time.monotonic() - one.since
        observation = one.waits.result()
        one.state = observation.state
        if one.spoken:
            last = one.turns[-1]
            one.turns[-1] = Turn(**{**vars(last), "reward": observation.reward, "uses": observation.uses})
        if observation.ended or not one.spoken:
            return observation.ended, observation.reason
        spoken = one.spoken[-1]
        if spoken.cut:
            return "token-limit", ""
        if one.policy_turns == self.environment.max_turns:
            return "turn-limit", ""
        messages = [message.node for message in observation.messages]
        try:
            ids, rewritten = self.bridge.observation_ids(one.prompt.row, one.history, messages, one.turns[-1].tokens)
        except Unwritable as error:
            return "environment-fault", str(error)
        if len(one.answered) + len(ids) >= self.generator.max_new:
            return "token-limit", ""
        one.history += messages
        self.counts["rewritten"] += rewritten
        one.turns.append(Turn(ids, "environment", text="\n".join(message.content for message in observation.messages)))
        return None, ""

    def _generate_turns(self, ready: Sequence[Running], temperature: float) -> list[Running]:
        """Generate the next turn of these episodes and send it to their environment. Collective."""
        requests = []
        for one in ready:
            prompt, answered = one.prompt.ids + one.answered, len(one.answered)
            requests.append(Request(prompt, np.array([one.stream]), temperature, answered, goes_on=True))
        episodes = self.generator.answer(requests)
        texts = self.generator.texts(episodes) if episodes else []
        for one, episode, text in zip(ready, episodes, texts, strict=True):
            (turn,) = episode.turns
            spoken = self.bridge.read(text, cut=turn.stop == "length")
            self.counts["unreadable"] += bool(spoken.unreadable)
            one.turns.append(Turn(**{**vars(turn), "text": text, "state": one.state}))
            one.spoken.append(spoken)
            one.history.append(self.bridge.turn_of(spoken))
            one.since, one.waits = time.monotonic(), self.sessions.step(one.number, spoken)
        return list(ready)

    def _finish_episode(self, one: Running, outcome: Outcome, reason: str, final: Final) -> Episode:
        fault = reason or outcome if not TRUSTED[outcome] else final.fault
        if fault:
            self.counts["faults"] += 1
        while one.turns and one.turns[-1].writer != "policy":
            one.turns.pop()  # nothing of the policy follows it
        empty = [] if one.turns else [self._placeholder_turn(one)]
        reward = math.nan if fault or final.reward is None else final.reward
        return Episode(
            one.prompt.ids, (*one.turns, *empty), reward=reward, parts={} if fault else final.parts, ended=outcome,
            fault=fault, facts=final.facts,
        )  # fmt: skip

    def _placeholder_turn(self, one: Running) -> Turn:
        """One masked token, in place of the turns of an episode that could not begin."""
        return Turn(
            [self.generator.model.eos[0]], "policy", stop="end", mask=[0], versions=[self.generator.model.version]
        )

    # ---- all episodes

    def _any_process(self, here: bool) -> bool:
        """Whether `here` is true in any process; collective."""
        if world.SIZE == 1:
            return here
        return bool(world.all_reduce_max(torch.tensor(float(here), device=self.generator.model.device)).item())

    def _wait(self, running: Sequence[Running], ending: Mapping[Future[Final], object]) -> None:
        """Wait for an answer, here or in another process, or until an episode has used its time."""
        if not running and not ending:
            return time.sleep(LOOK_S)
        timeout = min((self._seconds_left(one) for one in running), default=math.inf)
        timeout = min(timeout, LOOK_S) if world.SIZE > 1 else timeout
        futures: Iterator[Future] = iter([*(one.waits for one in running), *ending])
        wait(futures, None if timeout == math.inf else max(timeout, 0), FIRST_COMPLETED)
        return None
