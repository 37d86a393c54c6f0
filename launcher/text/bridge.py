"""The tokens between two turns of the policy, by the model's own chat template.

Sampled tokens are never rendered again: only the text between the end of one turn and the opening of the next is taken
from the template. Where the template would render an earlier turn differently by now (most drop its reasoning), the
sampled ids stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from launcher.core.problems import Problem, Problems
from launcher.spec.data import Row
from launcher.spec.environment import Spoken
from launcher.text.calls import form_of, read_plain, without_thought
from launcher.text.encoder import PROBE, Encoder, Unwritable, common_length, turns_of
from launcher.text.stop_tokens import Turn

_OTHER_TEXT = "\N{SNOWMAN}"
"""Replaces an answer's text, so that the common suffix of both renderings has nothing of the answer."""
_CALL: Turn = {"type": "function", "id": "call00000", "function": {"name": "look", "arguments": {"at": PROBE}}}


class Bridge:
    """Parses a model's turns, and encodes the messages that follow them."""

    def __init__(self, encoder: Encoder, tools: bool = True) -> None:
        """Raises `Problems` where the model has no chat template, or where there are `tools` that it cannot call."""
        self.encoder = encoder
        if not encoder.templated:
            fix = "use a model with a chat template, such as model=qwen3-0.6b, or model.chat=true with model=tiny"
            raise Problems(Problem("model", "has no chat template, which writes turns", fix, "not-supported"))
        self.form = form_of(self._render_call())
        if tools and not self.form:
            got = "its chat template writes no tool calls in a known form, and the environment has tools"
            fix = "use a model of Qwen, Llama 3, Mistral, Hermes or gpt-oss"
            raise Problems(Problem("model", got, fix, "not-supported"))

    def _render_call(self) -> str:
        turns: list[Turn] = [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": "", "tool_calls": [_CALL]},
        ]
        try:
            return self.encoder.render(turns)
        except Unwritable:
            return ""

    def read(self, text: str, cut: bool = False) -> Spoken:
        """Parse a turn of the policy; `cut`: the token limit ended it."""
        return self.form.parse(text, cut) if self.form else read_plain(text, cut)

    @staticmethod
    def turn_of(spoken: Spoken) -> Turn:
        """The turn as a chat template reads it."""
        _, content = without_thought(spoken.text)
        if spoken.calls or (not spoken.unreadable and content.strip() != spoken.content):
            content = spoken.content
        calls = [
            {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": dict(call.arguments)}}
            for call in spoken.calls
        ]
        thought = {"reasoning_content": spoken.thought} if spoken.thought else {}
        return {"role": "assistant", "content": content, **thought, **({"tool_calls": calls} if calls else {})}

    def observation_ids(
        self, row: Row, history: Sequence[Turn], messages: Sequence[Turn], sampled: Sequence[int]
    ) -> tuple[list[int], bool]:
        """Ids between the policy's last turn (whose ids are `sampled`) and its next: the rest of the turn's end, the
        messages, and the opening of an answer. Also whether the template, with the messages, renders that turn or an
        earlier one differently. `history` is the conversation after the prompt; that turn is its last.

        Raises `Unwritable` where the template does not take the messages.
        """
        turns, write = [*turns_of(row.prompt), *history], partial(self.encoder.render, open_answer=True)
        opened, written = write(turns[:-1], row.template_args), write([*turns, *messages], row.template_args)
        replaced = write([*turns[:-1], _with_other_text(turns[-1]), *messages], row.template_args)
        tail = written[len(written) - common_length(written[::-1], replaced[::-1]) :]
        ids, turn_end = self.encoder.ids(tail), tail.partition(messages[0]["content"] or tail)[0]
        end = self._end_length(self.encoder.ids(turn_end), sampled[-1]) or self._end_length(ids, sampled[-1])
        text: str = self.encoder.tokenizer.decode(sampled, clean_up_tokenization_spaces=False)
        return ids[end:], not written.startswith(opened + text)

    def _end_length(self, ids: Sequence[int], last: int) -> int:
        """How many of `ids` belong to the end of the turn before: up to the token sampled `last` or another stop token,
        else up to the first added token; 0 where there is none of these."""
        for end_tokens in ({last, *self.encoder.stop_tokens.ids}, self.encoder.added):
            if positions := [position for position, token in enumerate(ids) if token in end_tokens]:
                return positions[0] + 1
        return 0


def _with_other_text(turn: Mapping[str, Any]) -> Turn:
    """The assistant turn with its text and its calls' arguments replaced."""
    calls = [
        {**call, "function": {**call["function"], "arguments": {_OTHER_TEXT: _OTHER_TEXT}}}
        for call in turn.get("tool_calls", ())
    ]
    if calls:
        return {**turn, "content": _OTHER_TEXT if turn.get("content") else "", "tool_calls": calls}
    return {**turn, "content": _OTHER_TEXT}
