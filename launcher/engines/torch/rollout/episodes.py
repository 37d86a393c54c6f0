"""Episodes of several turns: the policy's turns are generated, an environment answers them, and sampled tokens are
never rewritten.

The turns of all ready episodes are generated together, while tools work on the others. A fault of the environment costs
one episode, which is sampled again or left without a score; a fault is never scored.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from launcher.engines.torch.parallel import world
from launcher.engines.torch.rollout.generator import Generator, Request
from launcher.spec.environment import EARLY, TRUSTED, Environment, Final, Observation, Outcome, Sessions, Spoken
from launcher.spec.episode import Episode, Turn
from launcher.text.bridge import Bridge
from launcher.text.encoder import Unwritable

LOOK_S = 0.05  # between two polls of the other processes, while this one waits
_RESAMPLE_STEP = 0xD1B54A32D192ED03  # added to an episode's stream each time it is sampled again


@dataclass(eq=False)
class Running:
    """An episode that the environment has not scored."""

    request: Request
    key: np.uint64
    place: int
    number: int
    """Number of its session."""
    attempt: int
    waits: Future[Any]
    """Of an observation; once the episode has ended, of the environment's score."""
    outcome: Outcome | None = None
    reason: str = ""
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


class EpisodeRunner:
    """Samples episodes of an environment. Its methods are collective, as the generator's are."""

    def __init__(self, generator: Generator, environment: Environment, sessions: Sessions, bridge: Bridge) -> None:
        self.generator, self.environment, self.sessions, self.bridge = generator, environment, sessions, bridge
        self._last_number = 0
        self.counts = defaultdict[str, float](float)
        """Outcomes, turns and calls of the episodes that are kept; prompts, faults, unreadable calls and rewritten
        turns of all that were sampled."""

    def close(self) -> None:
        self.sessions.close()

    def pop_metrics(self) -> dict[str, float]:
        """Metrics of all episodes since the last call; collective."""
        total = defaultdict(float, world.add_sums(self.counts))
        self.counts.clear()
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

    def run(self, requests: Sequence[Request], temperature: float) -> list[Episode]:
        """The episodes, prompt by prompt, each with the environment's score, or NaN where the run's reward scores
        the last turn. One that a fault ended has its reason in `fault`, and may have a placeholder as its only turn."""
        self.counts["prompts"] += len(requests)
        asked = [(request, key) for request in requests for key in request.keys]
        episodes: list[Episode | None] = [None] * len(asked)
        running = [self._begin(*one, place, 0) for place, one in enumerate(asked)]
        while self._any_process(bool(running)):
            ready = [one for one in running if self._advance(one)]
            self._take_ended(running, episodes)
            if self._any_process(bool(ready)):
                self._generate_turns(ready, temperature)
            else:
                self._wait(running)
        return [episode for episode in episodes if episode]

    def _take_ended(self, running: list[Running], episodes: list[Episode | None]) -> None:
        """Take the episodes that the environment has scored from `running` to their places in `episodes`; one with a
        fault is sampled again, as often as the environment is refilled."""
        for one in [one for one in running if one.outcome and one.waits.done()]:
            running.remove(one)
            episode = self._finish_episode(one)
            if episode.fault and one.attempt < self.environment.refills:
                running.append(self._begin(one.request, one.key, one.place, one.attempt + 1))
            else:
                episodes[one.place] = episode
                self._count(episode)

    # ---- one episode

    def _begin(self, request: Request, key: np.uint64, place: int, attempt: int) -> Running:
        assert request.row is not None
        self._last_number += 1
        self.counts["sampled"] += 1
        waits = self.sessions.begin(self._last_number, request.row)
        return Running(request, key, place, self._last_number, attempt, waits)

    def _seconds_left(self, one: Running) -> float:
        """Seconds that the environment may still take for this episode; it scores one that has ended without a
        limit."""
        if one.outcome:
            return math.inf
        return self.environment.timeout_s - one.spent_s - (time.monotonic() - one.since)

    def _advance(self, one: Running) -> bool:
        """Take the environment's answer, if it has come; returns whether the policy is to write the next turn. An
        episode that ends by the answer, or by the want of one, is given to the environment to be scored."""
        if one.outcome or not (one.waits.done() or self._seconds_left(one) <= 0):
            return False
        one.outcome, one.reason = self._observe(one)
        if one.outcome:
            self.generator.forget(one.stream)
            one.waits = self.sessions.end(one.number, one.outcome)
        return not one.outcome

    def _observe(self, one: Running) -> tuple[Outcome | None, str]:
        """Record the environment's observation. Returns why the episode has ended (None if not), and a reason."""
        if not one.waits.done():
            limit = self.environment.timeout_s
            return "timeout", f"the environment took longer than {limit:g} s (environment.timeout_s)"
        one.spent_s += time.monotonic() - one.since
        observation: Observation = one.waits.result()
        one.state = observation.state
        if one.spoken:
            one.turns[-1] = replace(one.turns[-1], reward=observation.reward, uses=observation.uses)
        if observation.ended or not one.spoken:
            return observation.ended, observation.reason
        if one.spoken[-1].cut:
            return "token-limit", ""
        if len(one.spoken) == self.environment.max_turns:
            return "turn-limit", ""
        assert one.request.row is not None
        messages = [message.node for message in observation.messages]
        try:
            ids, rewritten = self.bridge.observation_ids(one.request.row, one.history, messages, one.turns[-1].tokens)
        except Unwritable as error:
            return "environment-fault", str(error)
        if len(one.answered) + len(ids) >= self.generator.max_new:
            return "token-limit", ""
        one.history += messages
        self.counts["rewritten"] += rewritten
        one.turns.append(Turn(ids, "environment", text="\n".join(message.content for message in observation.messages)))
        return None, ""

    def _generate_turns(self, ready: Sequence[Running], temperature: float) -> None:
        """Generate the next turn of these episodes and send it to their environment. Collective."""
        requests = []
        for one in ready:
            prompt, stream = one.request.prompt + one.answered, np.array([one.stream])
            requests.append(Request(prompt, stream, answered=len(one.answered), goes_on=True))
        episodes = self.generator.answer(requests, temperature)
        texts = self.generator.texts(episodes) if episodes else []
        for one, episode, text in zip(ready, episodes, texts, strict=True):
            (turn,) = episode.turns
            spoken = self.bridge.read(text, cut=turn.stop == "length")
            self.counts["unreadable"] += bool(spoken.unreadable)
            one.turns.append(replace(turn, text=text, state=one.state))
            one.spoken.append(spoken)
            one.history.append(self.bridge.turn_of(spoken))
            one.since, one.waits = time.monotonic(), self.sessions.step(one.number, spoken)

    def _finish_episode(self, one: Running) -> Episode:
        assert one.outcome
        final: Final = one.waits.result()
        fault = final.fault if TRUSTED[one.outcome] else one.reason or one.outcome
        while one.turns and one.turns[-1].writer != "policy":
            one.turns.pop()  # nothing of the policy follows it
        turns = one.turns or [self._placeholder_turn()]  # it could not begin
        reward = math.nan if fault or final.reward is None else final.reward
        self.counts["faults"] += bool(fault)
        return Episode(
            one.request.prompt, tuple(turns), one.request.group, reward=reward, parts={} if fault else final.parts,
            ended=one.outcome, fault=fault, facts=final.facts,
        )  # fmt: skip

    def _placeholder_turn(self) -> Turn:
        model = self.generator.model
        return Turn([model.eos[0]], stop="end", mask=[0], versions=[model.version])

    def _count(self, episode: Episode) -> None:
        uses = [use for turn in episode.turns for use in turn.uses]
        self.counts["kept"] += 1
        self.counts[f"outcome/{episode.ended}"] += 1
        self.counts["early"] += episode.ended in EARLY
        self.counts["turns"] += len(episode.policy_turns)
        self.counts["calls"] += len(uses)
        self.counts["errors"] += sum(bool(use.error) for use in uses)
        self.counts["repeated"] += len(uses) - len({(use.name, use.arguments) for use in uses})
        self.counts["tool_s"] += sum(use.seconds for use in uses)

    # ---- all episodes

    def _any_process(self, here: bool) -> bool:
        """Whether `here` is true in any process; collective."""
        if world.SIZE == 1:
            return here
        return bool(world.all_reduce_max(torch.tensor(float(here), device=self.generator.model.device)).item())

    def _wait(self, running: Sequence[Running]) -> None:
        """Wait for an answer, here or in another process, or until an episode has used its time."""
        if not running:
            return time.sleep(LOOK_S)
        timeout = min(map(self._seconds_left, running))
        timeout = min(timeout, LOOK_S) if world.SIZE > 1 else timeout
        wait([one.waits for one in running], None if timeout == math.inf else max(timeout, 0), FIRST_COMPLETED)
        return None
