"""Episodes of several turns: what is sampled is what is trained, faults are no scores, and tools hold nobody up."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import jobs
import numpy as np
import pytest
import torch
from families import tiny

from launcher.algorithms.gigpo import GiGPO
from launcher.algorithms.grpo import GRPO
from launcher.algorithms.turn_grpo import TurnGRPO
from launcher.core.settings import settings
from launcher.data.files import Files
from launcher.engines.torch.model.network import CausalLM
from launcher.engines.torch.rollout.decode import Decoder
from launcher.engines.torch.rollout.episodes import EpisodeRunner
from launcher.engines.torch.rollout.generator import Generator, Request
from launcher.engines.torch.rollout.sampler import TorchSampler
from launcher.engines.torch.train.answering import PromptAnswerer
from launcher.engines.torch.train.batching import Limits, collate
from launcher.engines.torch.train.measure import batch_metrics
from launcher.spec.data import Message, Row
from launcher.spec.environment import Environment, Final, Observation, Outcome, Sessions, Spoken
from launcher.spec.episode import Episode, Turn
from launcher.spec.reward import Answer, Reward
from launcher.spec.run import Optim
from launcher.text.bridge import Bridge
from launcher.text.encoder import Encoder

ROW = Row("rows.jsonl:1", (Message("user", "add"),), ground_truth="7")


@settings
class Several(Environment):
    """Several turns, without processes."""


class Length(Reward):
    def score(self, answers: Sequence[Answer]) -> list[float]:
        return [float(len(answer.response)) for answer in answers]


class Now(Sessions):
    """Answers at once with `reply` of a session, turn by turn; then the episode is finished."""

    def __init__(self, reply: Callable[[int, int], Observation], final: Final | None = None) -> None:
        self.replies, self.final, self.turns = reply, final or Final(1.0), defaultdict[int, int](int)
        self.ended: dict[int, Outcome] = {}

    def begin(self, number: int, row: Row) -> Future[Observation]:
        return done(Observation(state="start"))

    def step(self, number: int, spoken: Spoken) -> Future[Observation]:
        self.turns[number] += 1
        return done(self.replies(number, self.turns[number]))

    def end(self, number: int, outcome: Outcome) -> Future[Final]:
        assert number not in self.ended, "a session ends once"
        self.ended[number] = outcome
        return done(self.final)

    def close(self) -> None:
        pass


class Scripted(Generator):
    """Writes the turns of a script: those of the key of each request, one after the other."""

    def __init__(self, model: CausalLM, scripts: dict[int, list[str]], most: int = 400) -> None:
        super().__init__(model, TorchSampler(), most)
        self.scripts, self.batches = {key: iter(turns) for key, turns in scripts.items()}, list[int]()

    def generate(self, requests: Sequence[Request], temperature: float) -> list[Turn]:
        self.batches.append(len(requests))
        texts = [next(self.scripts[int(request.keys[0])]) for request in requests]
        ids = [self.model.tokenizer(text, add_special_tokens=False).input_ids for text in texts]
        return [Turn([*each, self.model.eos[0]], stop="end") for each in ids]


def done(value: Any) -> Future[Any]:
    future = Future[Any]()
    future.set_result(value)
    return future


def call(**arguments: Any) -> str:
    return f'<tool_call>{{"name": "add", "arguments": {json.dumps(arguments)}}}</tool_call>'


def tool(text: str, **more: Any) -> Observation:
    return Observation((Message("tool", text, {"name": "add", "tool_call_id": "call00000"}),), **more)


def several(number: int, turn: int) -> Observation:
    """Five results of tools, then the end."""
    return tool(f"result {turn}", reward=turn / 10, state=f"s{turn % 2}") if turn < 6 else Observation(ended="finished")


@pytest.fixture
def chat(exact: Callable[..., None]) -> tuple[CausalLM, Bridge]:
    words = ("<tool_call>", "</tool_call>", '"name": ', '"arguments": ')
    model = tiny(chat=True, words=words, max_position_embeddings=1024)
    exact(model, model.base)
    encoder = Encoder(model.tokenizer, Files())
    model.stop_at(encoder.stop_tokens.ids)
    return model, Bridge(encoder)


def ids_of(bridge: Bridge, row: Row = ROW) -> list[int]:
    return bridge.encoder.prompt_ids(row.prompt, row.template_args)


def run(
    chat: tuple[CausalLM, Bridge], sessions: Sessions, scripts: dict[int, list[str]], most: int = 400, **values: Any
) -> tuple[list[Episode], EpisodeRunner, Scripted]:
    model, bridge = chat
    generator = Scripted(model, scripts, most)
    runner = EpisodeRunner(generator, Several(**values), sessions, bridge)
    asked = [Request(ids_of(bridge), np.array([key], np.uint64), ROW) for key in scripts]
    return runner.run(asked, 1.0), runner, generator


# ---- tokens


def test_what_was_sampled_is_trained_and_nothing_else_and_reads_as_the_template_writes_it(
    chat: tuple[CausalLM, Bridge],
) -> None:
    model, _ = chat
    turns = [call(a=1, b=turn) for turn in range(5)] + ["7"]
    (episode,), runner, _ = run(chat, Now(several), {1: turns})
    decode = model.tokenizer.decode
    policy = [decode(turn.tokens) for turn in episode.turns if turn.writer == "policy"]
    assert policy == [f"{text}<eos>" for text in turns]
    kept = [token for token, mask in zip(episode.tokens, episode.mask, strict=True) if mask]
    assert decode(kept) == "".join(policy)
    assert [turn.writer for turn in episode.turns] == ["policy", "environment"] * 5 + ["policy"]
    assert decode(episode.turns[1].tokens) == "<|tool|>result 1<eos><|assistant|>"
    assert runner.pop_metrics()["agent/rewritten_turns/mean"] == 0, "the template writes the whole equally"
    assert [turn.reward for turn in episode.policy_turns] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.0]
    assert [turn.state for turn in episode.policy_turns] == ["start", "s1", "s0", "s1", "s0", "s1"]


def test_a_turn_of_a_decoder_goes_on_with_the_random_numbers_of_the_first(chat: tuple[CausalLM, Bridge]) -> None:
    """An answer in two pieces is the answer in one: the streams and the longest length go on."""
    model, bridge = chat
    decoder, prompt, key = Decoder(model, TorchSampler(), 12), ids_of(bridge), np.array([5], np.uint64)
    (whole,) = decoder.answer([Request(prompt, key)], 1.0)
    for cut in range(1, len(whole.turns[0].tokens)):
        head = whole.turns[0].tokens[:cut]
        (tail,) = decoder.answer([Request(prompt + head, key, answered=cut)], 1.0)
        assert head + tail.turns[0].tokens == whole.turns[0].tokens
    mixed = [Request(prompt, key), Request(prompt + whole.turns[0].tokens[:3], key, answered=3)]
    one, other = decoder.answer(mixed, 1.0)
    assert one.turns[0].tokens[3:] == other.turns[0].tokens


# ---- gradients


@pytest.mark.parametrize(
    ("algorithm", "rows"),
    [(kind(loss_agg_mode="token-mean"), rows) for kind, rows in ((GRPO, 1), (TurnGRPO, 8), (GiGPO, 8))],
)
def test_the_gradient_of_an_episode_is_that_of_its_turns_as_copies_and_tools_get_none(
    chat: tuple[CausalLM, Bridge], algorithm: GRPO, rows: int
) -> None:
    model, _ = chat
    scripts = {1: [call(a=number) for number in range(5)] + ["7"], 2: [call(b=1), call(b=1), "8"], 3: ["9"]}

    def reply(number: int, turn: int) -> Observation:
        return several(number, turn) if turn < len(scripts[number]) else Observation(ended="finished")

    episodes, _, _ = run(chat, Now(reply), scripts)
    rewards = (1.0, 0.0, 0.25)
    episodes = [replace(one, reward=reward, group=0) for one, reward in zip(episodes, rewards, strict=True)]
    batch, _ = algorithm.prepare(collate(episodes, model), {})
    assert not batch.advantage[batch.turn < 0].any(), "tokens of the prompt and of tools have no advantage at all"
    assert batch.advantage[batch.turn >= 0].any()
    pull = -batch.advantage * batch.mask / batch.mask.sum()
    for number, episode in enumerate(episodes):  # by plain transformers, each turn as a copy behind what it follows
        end = len(episode.prompt)
        for turn in episode.turns:
            start, end = end, end + len(turn.tokens)
            if turn.writer == "policy":
                ids = torch.tensor([episode.tokens[:end]])
                logits = model.base(input_ids=ids).logits[0, start - 1 : -1, : model.vocabulary]
                logp = logits.log_softmax(-1).gather(1, ids[0, start:, None])[:, 0]
                (logp * pull[number, start:end]).sum().backward()
    expected = {weight: weight.grad.clone() for weight in model.base.parameters() if weight.grad is not None}
    scale = max(each.abs().max().item() for each in expected.values())
    model.base.zero_grad()
    seen = dict[torch.Tensor, torch.Tensor]()
    for weight in expected:
        weight.register_post_accumulate_grad_hook(lambda each: seen.update({each: each.grad.clone()}))
    jobs.policy_of(model, algorithm, limits=Limits(rows), optim=Optim(lr=1e-3, clip_grad=1e9)).update(batch, 1)
    assert max((seen[weight] - theirs).abs().max().item() for weight, theirs in expected.items()) <= 1e-12 * scale


# ---- ends


@pytest.mark.parametrize(
    ("scripts", "values", "outcome", "policy_turns"),
    [
        ({1: ["7"] * 9}, {}, "finished", 6),
        ({1: ["7"] * 9}, {"max_turns": 3}, "turn-limit", 3),
        ({1: ["7" * 60] * 9}, {"most": 70}, "token-limit", 1),
    ],
)
def test_why_an_episode_ends(
    chat: tuple[CausalLM, Bridge],
    scripts: dict[int, list[str]],
    values: dict[str, Any],
    outcome: str,
    policy_turns: int,
) -> None:
    (episode,), runner, _ = run(chat, Now(several), scripts, **values)
    assert (episode.ended, len(episode.policy_turns), episode.fault) == (outcome, policy_turns, "")
    assert episode.turns[-1].writer == "policy", "nothing stands behind the policy's last turn"
    metrics = runner.pop_metrics()
    assert metrics[f"agent/outcome/{outcome}/share"] == 1
    assert metrics["train/num_early_exit"] == (outcome == "finished")


def broken(number: int, turn: int) -> Observation:
    return Observation(ended="environment-fault", reason="the disk is gone") if turn == 2 else several(number, turn)


def test_a_fault_is_sampled_anew_with_another_stream_and_then_left_without_a_score(
    chat: tuple[CausalLM, Bridge],
) -> None:
    model, bridge = chat
    streams = list[int]()

    class Same(Scripted):
        def generate(self, requests: Sequence[Request], temperature: float) -> list[Turn]:
            streams.extend(int(request.keys[0]) for request in requests)
            return [Turn([model.eos[0]], stop="end") for _ in requests]

    def ran(reply: Callable[[int, int], Observation], refills: int) -> tuple[Episode, EpisodeRunner, Now]:
        streams.clear()
        runner = EpisodeRunner(Same(model, {}), Several(refills=refills), sessions := Now(reply), bridge)
        (episode,) = runner.run([Request(ids_of(bridge), np.array([1], np.uint64), ROW)], 1.0)
        return episode, runner, sessions

    episode, runner, sessions = ran(broken, 2)
    assert (episode.ended, episode.fault) == ("environment-fault", "the disk is gone") and math.isnan(episode.score)
    assert sorted(sessions.ended) == [1, 2, 3] and len(set(streams)) == 3, "each session is ended"
    assert runner.pop_metrics()["agent/faults/share"] == 1
    (left,), reasons = PromptAnswerer(runner.generator, Length(), runner).score([episode], [ROW])
    assert reasons == [left.fault] == ["the disk is gone"] and math.isnan(left.score)
    once, *_ = ran(lambda number, turn: broken(number, 2) if number == 1 else Observation(ended="finished"), 1)
    assert (once.ended, once.fault, once.reward) == ("finished", "", 1.0)


@pytest.mark.parametrize("final", [Final(fault="raised KeyError"), Final(None)], ids=["fault", "none"])
def test_the_score_is_the_environments_or_the_rewards_and_never_that_of_a_fault(
    chat: tuple[CausalLM, Bridge], final: Final
) -> None:
    episodes, runner, generator = run(chat, Now(several, final), {1: ["7"] * 5 + ["seven"]}, refills=0)
    (episode,), _ = PromptAnswerer(generator, Length(), runner).score(episodes, [ROW])
    if final.fault:
        assert math.isnan(episode.score) and episode.fault == "raised KeyError"
    else:
        assert (episode.score, episode.fault) == (5.0, ""), "the reward scores the last turn"


# ---- tools that take their time


class Slow(Now):
    """Turns of odd sessions are answered only after those of all even ones have ended."""

    def __init__(self) -> None:
        super().__init__(several)
        self.held: list[tuple[Future[Observation], int]] = []

    def step(self, number: int, spoken: Spoken) -> Future[Observation]:
        self.turns[number] += 1
        future = Future[Observation]()
        if number % 2 and len([one for one in self.ended if one % 2 == 0]) < 4:
            self.held.append((future, number))
        else:
            future.set_result(self.replies(number, self.turns[number]))
        return future

    def end(self, number: int, outcome: Outcome) -> Future[Final]:
        found = super().end(number, outcome)
        if len([one for one in self.ended if one % 2 == 0]) == 4:
            held, self.held = self.held, []
            for future, one in held:
                future.set_result(self.replies(one, self.turns[one]))
        return found


def test_a_slow_tool_holds_nobody_up(chat: tuple[CausalLM, Bridge]) -> None:
    """While four episodes wait, the other four are generated to their ends: in batches of all that are ready."""
    episodes, _, generator = run(chat, Slow(), {key: ["7"] * 9 for key in range(1, 9)})
    assert generator.batches == [8, *[4] * 5, *[4] * 5]
    assert [len(one.policy_turns) for one in episodes] == [6] * 8


def test_an_environment_that_never_answers_is_a_timeout(chat: tuple[CausalLM, Bridge]) -> None:
    class Never(Now):
        def step(self, number: int, spoken: Spoken) -> Future[Observation]:
            return Future[Observation]() if number == 1 else super().step(number, spoken)

    sessions = Never(several)
    episodes, runner, _ = run(chat, sessions, {1: ["7"] * 9, 2: ["8"] * 9}, timeout_s=0.2, refills=0)
    assert [one.ended for one in episodes] == ["timeout", "finished"]
    assert "timeout_s" in episodes[0].fault and sessions.ended[1] == "timeout"
    assert runner.pop_metrics()["agent/faults/share"] == 0.5


def test_what_an_environment_said_is_no_part_of_the_prompt(chat: tuple[CausalLM, Bridge]) -> None:
    """Lengths are those of the prompt, and of what the policy wrote."""
    between = Turn([6, 7, 8, 9], "environment")
    turns = (Turn([5, 1], stop="end"), between, Turn([9, 5, 1], stop="end"))
    batch = collate([Episode([3, 4, 5], turns, group=0, reward=1.0, ended="finished") for _ in range(2)], chat[0])
    found = batch_metrics(batch, batch, True, 64, [1], 8)
    assert (found["prompt_length/max"], found["response_length/max"], found["prompt_length/clip_ratio"]) == (3, 5, 0)
