"""Several turns under the templates of model families: calls are read as they are written, and the ids that were
sampled are those that are trained."""

from __future__ import annotations

import json
import os
import random
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from chats import FAMILIES, scattered, tokenizer_of
from hypothesis import example, given
from hypothesis import strategies as st

from launcher.core.problems import Problems
from launcher.core.settings import settings
from launcher.data.files import Files
from launcher.engines.torch.rollout.episodes import EpisodeRunner
from launcher.engines.torch.rollout.generator import Request
from launcher.spec.data import Message, Row
from launcher.spec.environment import Environment, Final, Observation, Outcome, Sessions, Spoken
from launcher.spec.episode import Episode, Turn
from launcher.text.bridge import Bridge
from launcher.text.calls import FORMS, CallForm
from launcher.text.encoder import Encoder

TOOLS = [{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}}]
ROW = Row("rows.jsonl:1", (Message("user", "Where is it?"),), template_args={"tools": TOOLS})
EPISODES = int(os.environ.get("EPISODES", "300"))
"""Over all families; `make template-episodes` takes 10,000."""


@cache
def bridge_of(name: str) -> Bridge:
    return Bridge(Encoder(tokenizer_of(FAMILIES[name]), Files()))


def call_of(name: str, at: str) -> str:
    return FAMILIES[name].call.replace("[]", at).replace("{}", json.dumps(at, ensure_ascii=False))


def tool(text: str) -> dict[str, Any]:
    return Message("tool", text, {"name": "look", "tool_call_id": "call00000"}).node


# ---- calls


@pytest.mark.parametrize("name", FAMILIES)
@given(
    at=st.text(st.characters(codec="utf-8", exclude_characters="<>\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"), min_size=1)
)
@example(at='say "\\no", {1: [2]}')
@example(at="12.50")
@example(at="null")
def test_calls_are_read_as_they_are_written(name: str, at: str) -> None:
    spoken = bridge_of(name).read(call_of(name, at))
    (call,) = spoken.calls
    assert not spoken.unreadable and call.name == "look"
    if FAMILIES[name].form != "tagged":
        assert call.arguments == {"at": at}
    elif at[:1] not in "[{":  # otherwise it may be JSON
        assert call.arguments["at"].strip("\n") == at.strip("\n")
    assert spoken.thought == ("hm" if "hm" in FAMILIES[name].call else "") and spoken.content == ""


@pytest.mark.parametrize("name", FAMILIES)
def test_the_form_is_seen_in_the_template_which_writes_what_was_read(name: str) -> None:
    bridge, text = bridge_of(name), call_of(name, "the shelf")
    assert bridge.form is not None and bridge.form.name == FAMILIES[name].form
    assert text in bridge.encoder.render(
        [{"role": "user", "content": "?"}, bridge.turn_of(bridge.read(text)), tool("x")]
    )


HERMES, TAGGED, HARMONY, MISTRAL, LLAMA = "hermes", "tagged", "harmony", "mistral", "llama"


def form(name: str) -> CallForm:
    return next(form for form in FORMS if form.name == name)


@pytest.mark.parametrize(("name", "text", "calls", "content"), [
    (HERMES, 'Let me.\n<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>\n<tool_call>{"name": "b"}</tool_call>',
     [("a", {}), ("b", {})], "Let me."),
    (HERMES, '<tool_call>{"name": "a", "arguments": "{\\"x\\": 1}"}</tool_call>', [("a", {"x": 1})], ""),
    (HERMES, '<think>maybe <tool_call>{"name": "a"}</tool_call></think>\n\nNo.', [], "No."),  # it only thought of it
    (TAGGED, "<tool_call>\n<function=a>\n<parameter=x>\n1\n</parameter>\n<parameter=y>\n[1, 2]\n</parameter>\n</function>"
     "\n</tool_call>", [("a", {"x": "1", "y": [1, 2]})], ""),
    (TAGGED, "<tool_call><function=a></function></tool_call>", [("a", {})], ""),
    (HARMONY, "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.a "
     '<|constrain|>json<|message|>{"x": 1}<|call|>', [("a", {"x": 1})], ""),
    (HARMONY, ' to=functions.a<|channel|>commentary json<|message|>{"x": 1}', [("a", {"x": 1})], ""),
    (HARMONY, "<|channel|>final<|message|>Done.<|return|>", [], "Done."),
    (MISTRAL, '[TOOL_CALLS] [{"name": "a", "arguments": {"x": 1}, "id": "123456789"}]', [("a", {"x": 1})], ""),
    (LLAMA, '<|python_tag|>{"type": "function", "name": "a", "parameters": {"x": 1}}', [("a", {"x": 1})], ""),
    (LLAMA, '{"name": "Ada", "age": 36}', [], '{"name": "Ada", "age": 36}'),  # an answer of JSON
])  # fmt: skip
def test_known_calls(name: str, text: str, calls: list[tuple[str, Any]], content: str) -> None:
    found = form(name).parse(text)
    assert not found.unreadable
    assert [(call.name, call.arguments) for call in found.calls] == calls and found.content == content
    assert len({call.id for call in found.calls}) == len(calls)


@pytest.mark.parametrize(("name", "text", "reason"), [
    (HERMES, '<tool_call>{"name": "a", "arguments": {"x": }}</tool_call>', "Expecting value: line 1 column 34"),
    (HERMES, '<tool_call>{"name": "a"}', "a call that begins with <tool_call> has no end"),
    (HERMES, '<tool_call>{"name": "\\ud83d"}</tool_call>', "surrogates not allowed"),  # half of a character
    (HERMES, '<tool_call>["a"]</tool_call>', 'a call is an object with "name" and "arguments"'),
    (HERMES, '<tool_call>{"name": "a", "arguments": [1]}</tool_call>', "the arguments are no object"),
    (HERMES, f"<tool_call>{'[' * 100_000}</tool_call>", "recursion"),
    (HERMES, f'<tool_call>{{"name": "a", "arguments": {{"x": {"[" * 64}{"]" * 64}}}}}</tool_call>', "more than 64 deep"),
    (HARMONY, f'to=functions.a<|channel|>commentary<|message|>{"""{"x":""" * 500}1{"}" * 500}', "more than 64 deep"),
    (HERMES, "<tool_call>[]</tool_call>", "it calls nothing"),
    (MISTRAL, "[TOOL_CALLS] []", "it calls nothing"),
    (HERMES, '<tool_call>{"name": "a"}</tool_call><tool_call>a</tool_call>', "Expecting value"),  # then neither is called
    (TAGGED, '<tool_call>{"name": "a"}</tool_call>', "a call is <function=NAME>"),
    (TAGGED, "<tool_call><function=a><parameter=x>1</function></tool_call>", "a parameter is"),
    (HARMONY, "<|channel|>commentary to=functions.a<|message|>{<|call|>", "Expecting property name"),
    (HARMONY, " to=functions.a{}", "a call that begins with to=functions. has no end"),
    (MISTRAL, "[TOOL_CALLS] a", "a call that begins with [TOOL_CALLS] has no end"),
    (LLAMA, '{"name": "a", "parameters": {"x": 1}', "Expecting ',' delimiter"),
    (LLAMA, "<|python_tag|>a.call(x=1)", "a call that begins with <|python_tag|> has no end"),
])  # fmt: skip
def test_what_cannot_be_read_is_named_and_nothing_is_called(name: str, text: str, reason: str) -> None:
    found = form(name).parse(text)
    assert reason in found.unreadable and not found.calls and len(found.unreadable) <= 400


@given(st.sampled_from(FORMS), st.text())
def test_any_text_is_read(of: CallForm, text: str) -> None:
    assert isinstance(of.parse(of.begins + text), Spoken)


def test_a_template_without_calls_is_refused_where_there_are_tools() -> None:
    plain = "{% for turn in messages %}<|im_start|>{{ turn.content }}<|im_end|>{% endfor %}"
    tokenizer = tokenizer_of(FAMILIES["hermes"])
    tokenizer.chat_template = plain
    with pytest.raises(Problems, match="no tool calls in a known form"):
        Bridge(Encoder(tokenizer, Files()))
    assert Bridge(Encoder(tokenizer, Files()), tools=False).read("a").content == "a"
    tokenizer.chat_template = None
    with pytest.raises(Problems, match="no chat template"):
        Bridge(Encoder(tokenizer, Files()), tools=False)


# ---- between turns

AFTER_TEXT = {  # what stands between an answer and the next, where a user goes on
    "qwen2.5": "\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n",
    "qwen3": "\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n",
    "qwen3.5": "\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n<think>\n",
    "hermes": "\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n",
    "llama3": "<|start_header_id|>user<|end_header_id|>\n\nmore<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    "gpt-oss": "<|start|>user<|message|>more<|end|><|start|>assistant",
}


def between(name: str, text: str, end: str, message: dict[str, Any]) -> tuple[str, bool]:
    """What follows a sampled turn, as text."""
    bridge = bridge_of(name)
    sampled = bridge.encoder.ids(text + end)
    history = [bridge.turn_of(bridge.read(text))]
    ids, rewritten = bridge.observation_ids(ROW, history, [message], sampled)
    return bridge.encoder.tokenizer.decode(ids), rewritten


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("text", ["yes", "yes\N{SNOWMAN}", '"}}', "<|", ""])
def test_what_stands_between_an_answer_and_the_next_turn(name: str, text: str) -> None:
    """Where a user goes on, Qwen3 leaves out what was thought, and gpt-oss also writes another end."""
    answer = FAMILIES[name].answer.replace("{}", text)
    found, rewritten = between(name, answer, FAMILIES[name].eos, {"role": "user", "content": "more"})
    assert found == AFTER_TEXT[name]
    assert rewritten == (name in ("qwen3", "qwen3.5", "gpt-oss"))


@pytest.mark.parametrize(("name", "text", "end"), [
    ("qwen2.5", call_of("qwen2.5", "it"), "<|endoftext|>"),  # its own end is not written twice
    ("llama3", call_of("llama3", "it"), "<|eom_id|>"),
    ("qwen3", call_of("qwen3", "it").replace(": ", ":"), "<|im_end|>"),  # other words of the same call stay
])  # fmt: skip
def test_a_turn_that_ends_or_reads_otherwise_than_the_template_writes_it(name: str, text: str, end: str) -> None:
    result = tool("4 <|im_end|> b")
    expected, _ = between(name, call_of(name, "it"), FAMILIES[name].ends, result)
    assert between(name, text, end, result) == (expected, True)


# ---- 10,000 episodes


class Drawn:
    """Fake of a generator: writes turns that the tokenizer itself would spell otherwise, and nonsense."""

    max_new = 3000

    def __init__(self, name: str, seed: int) -> None:
        self.name, self.bridge, self.draw = name, bridge_of(name), random.Random(seed)
        tokenizer = self.bridge.encoder.tokenizer
        self.ends = [*self.bridge.encoder.stop_tokens.ids]
        self.model = SimpleNamespace(eos=self.ends, version=0, device="cpu", tokenizer=tokenizer)
        self.plain = [number for number in range(len(tokenizer)) if number not in self.ends]
        self.sampled = defaultdict[int, list[tuple[list[int], list[int]]]](list)
        self.pool = [self._ids() for _ in range(500)]

    def answer(self, requests: Sequence[Request], temperature: float) -> list[Episode]:
        return [Episode(one.prompt, (self._turn(one),)) for one in requests]

    def forget(self, key: np.uint64) -> None:
        """It keeps nothing."""

    def texts(self, episodes: Sequence[Episode]) -> list[str]:
        decode = self.model.tokenizer.decode
        return [decode(one.turns[-1].tokens[:-1], skip_special_tokens=False) for one in episodes]

    def _turn(self, asked: Request) -> Turn:
        ids = [*self.draw.choice(self.pool), self.draw.choice(self.ends)]
        self.sampled[int(asked.keys[0])].append((asked.prompt, ids))
        return Turn(list(ids), stop="end")

    def _ids(self) -> list[int]:
        kind, word = (
            self.draw.random(),
            "".join(self.draw.choices('look{"}\N{SNOWMAN}é \n<>', k=self.draw.randint(1, 9))),
        )
        if kind < 0.5:
            return scattered(self.model.tokenizer, call_of(self.name, word.strip() or "x"), self.draw)
        if kind < 0.8:
            return scattered(self.model.tokenizer, FAMILIES[self.name].answer.replace("{}", word), self.draw)
        return self.draw.choices(self.plain, k=self.draw.randint(0, 12))


class Talk(Sessions):
    """Results of tools for calls, and a user who goes on for anything else."""

    def __init__(self, seed: int) -> None:
        self.draw, self.ended = random.Random(seed), set[int]()

    def begin(self, number: int, row: Row) -> Future[Observation]:
        return done(Observation())

    def step(self, number: int, spoken: Spoken) -> Future[Observation]:
        def word() -> str:
            return "".join(self.draw.choices(["a", "<|im_end|>", "</think>", "\n", "{}", "é", " "], k=3))

        if self.draw.random() < 0.3:
            return done(Observation(ended="finished"))
        if spoken.calls:
            return done(Observation(tuple(Message("tool", word(), {"name": call.name}) for call in spoken.calls)))
        return done(Observation((Message("user", word()),)))

    def end(self, number: int, outcome: Outcome) -> Future[Final]:
        self.ended.add(number)
        return done(Final(1.0))

    def close(self) -> None:
        pass


def done(value: Any) -> Future[Any]:
    future = Future[Any]()
    future.set_result(value)
    return future


@settings
class Talking(Environment):
    """Fake: only its limits count here."""


@pytest.mark.parametrize("name", FAMILIES)
def test_the_ids_that_were_sampled_are_the_ids_that_are_trained(name: str) -> None:
    """Episodes by the engine's own runner: each turn was sampled behind all that stands before it in training."""
    generator, bridge, count = Drawn(name, 1), bridge_of(name), EPISODES // len(FAMILIES) + 1
    runner = EpisodeRunner(generator, Talking(max_turns=4), sessions := Talk(2), bridge)  # type: ignore[arg-type]
    prompt = bridge.encoder.prompt_ids(ROW.prompt, ROW.template_args)
    episodes = runner.run([Request(prompt, np.arange(count, dtype=np.uint64), ROW)], 1.0)
    assert len(episodes) == len(sessions.ended) == count
    for key, episode in enumerate(episodes):
        assert not episode.fault, episode.fault
        before, found = list(prompt), list[tuple[list[int], list[int]]]()
        for turn in episode.turns:
            if turn.writer == "policy":
                found.append((list(before), turn.tokens))
            before += turn.tokens
        assert found == generator.sampled[key] and episode.tokens == before
        kept = [token for token, mask in zip(episode.tokens, episode.mask, strict=True) if mask]
        assert kept == [token for _, ids in found for token in ids]
    turns = sum(map(len, generator.sampled.values()))
    assert turns > 2 * count
    rewritten = runner.pop_metrics()["agent/rewritten_turns/mean"]
    assert rewritten < turns / count and (rewritten > 0.3 or name not in ("qwen3", "qwen3.5", "gpt-oss"))


@pytest.mark.parametrize("name", FAMILIES)
def test_where_the_template_keeps_all_turns_the_episode_is_what_it_writes(name: str) -> None:
    """Of calls and results of tools; what stands between has the ids of its text."""
    bridge, draw = bridge_of(name), random.Random(3)
    encoder = bridge.encoder
    for _ in range(25):
        history, ids = list[dict[str, Any]](), encoder.prompt_ids(ROW.prompt, ROW.template_args)
        for _ in range(draw.randint(1, 5)):
            text = call_of(name, draw.choice(["it", "the shelf", "a 12", "é"]))
            sampled = encoder.ids(text + FAMILIES[name].ends)
            history.append(bridge.turn_of(bridge.read(text)))
            message = tool(draw.choice(["a", "b <|im_end|>"]))
            found, rewritten = bridge.observation_ids(ROW, history, [message], sampled)
            assert not rewritten and found == encoder.ids(encoder.tokenizer.decode(found))
            history.append(message)
            ids += sampled + found
        turns = [*(each.node for each in ROW.prompt if isinstance(each, Message)), *history]
        written = encoder.render(turns, ROW.template_args, open_answer=True)
        assert encoder.tokenizer.decode(ids) == written
