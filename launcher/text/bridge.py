"""Between two turns of the policy: what stands in the tokens there, by the model's own chat template.

What was sampled is never written again: only the text between the end of one turn and the opening of the next is taken
from the template. Where the template would write an earlier turn otherwise now (most drop its reasoning), the sampled
ids stay.
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

_UNLIKE = "\N{SNOWMAN}"
"""In the place of an answer, so that what is common to both is not of the answer."""
_CALL: Turn = {"type": "function", "id": "call00000", "function": {"name": "look", "arguments": {"at": PROBE}}}


class Bridge:
    """Reads a model's turns, and writes what it reads after them."""

    def __init__(self, encoder: Encoder, tools: bool = True) -> None:
        """Raises `Problems` where the model has no chat template, or where there are `tools` that it cannot call."""
        self.encoder = encoder
        if not encoder.templated:
            fix = "use a model with a chat template, such as model=qwen3-0.6b, or model.chat=true with model=tiny"
            raise Problems(Problem("model", "has no chat template, which writes turns", fix, "not-supported"))
        self.form = form_of(self._written_call())
        if tools and not self.form:
            got = "its chat template writes no tool calls in a known form, and the environment has tools"
            fix = "use a model of Qwen, Llama 3, Mistral, Hermes or gpt-oss"
            raise Problems(Problem("model", got, fix, "not-supported"))

    def _written_call(self) -> str:
        turns: list[Turn] = [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": "", "tool_calls": [_CALL]},
        ]
        try:
            return self.encoder.render(turns)
        except Unwritable:
            return ""

    def read(self, text: str, cut: bool = False) -> Spoken:
        """A turn of the policy; `cut` where the limit of tokens ended it."""
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
        """What stands between the policy's last turn, whose ids `sampled` are, and its next: the rest of its end, the
        messages, and the opening of an answer. `history` is the conversation after the prompt, that turn the last. And
        whether the template writes that turn, or an earlier one, otherwise now that the messages follow.

        Raises `Unwritable` where the template does not take the messages.
        """
        before, write = [*turns_of(row.prompt), *history], partial(self.encoder.render, open_answer=True)
        opened, written = write(before[:-1], row.template_args), write([*before, *messages], row.template_args)
        other = write([*before[:-1], _unlike(before[-1]), *messages], row.template_args)
        tail = written[len(written) - common_length(written[::-1], other[::-1]) :]
        ids, rest = self.encoder.ids(tail), tail.partition(messages[0]["content"] or tail)[0]
        end = self._end(self.encoder.ids(rest), sampled[-1]) or self._end(ids, sampled[-1])
        text: str = self.encoder.tokenizer.decode(sampled, clean_up_tokenization_spaces=False)
        return ids[end:], not written.startswith(opened + text)

    def _end(self, ids: Sequence[int], last: int) -> int:
        """How many of `ids` belong to the turn that ends there: up to the token that was sampled last, or another that
        ends turns, or else the first that is no text; 0 where there is none of these."""
        for ends in ({last, *self.encoder.stop_tokens.ids}, self.encoder.added):
            if places := [place for place, token in enumerate(ids) if token in ends]:
                return places[0] + 1
        return 0


def _unlike(turn: Mapping[str, Any]) -> Turn:
    """The turn of an assistant with other words and other arguments."""
    calls = [
        {**call, "function": {**call["function"], "arguments": {_UNLIKE: _UNLIKE}}}
        for call in turn.get("tool_calls", ())
    ]
    if calls:
        return {**turn, "content": _UNLIKE if turn.get("content") else "", "tool_calls": calls}
    return {**turn, "content": _UNLIKE}
