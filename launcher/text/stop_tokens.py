"""The tokens that end an answer, found from what a chat template writes after one.

A base model's template may end turns with `<|im_end|>` while its tokenizer's EOS is `<|endoftext|>`. Some templates
write no end: an answer ends where the next turn begins, as with GLM's `<|user|>`. Others have several ends: gpt-oss
ends an answer with `<|return|>` and a tool call with `<|call|>`, while `<|end|>` stands between the parts of an answer.
So short conversations are rendered, and tokens that also occur within an answer are not taken for its end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerFast

Turn = dict[str, Any]

ANSWER, THOUGHT, NEXT, RESULT = "Forty-one.", "Forty-two.", "Forty-three.", "Forty-four."
WORDS = "forty-five", "forty-six"
ASKED: Turn = {"role": "user", "content": "Forty?"}
REASONING = ("reasoning_content", "reasoning", "thinking")
"""Keys under which templates read the reasoning of an answer."""


class StopTokens(NamedTuple):
    end: int
    """Appended to an answer where the template writes no end."""
    call: int
    """Appended to tool calls where the template writes no end."""
    ids: tuple[int, ...]
    """All tokens that end an answer; the tokenizer's EOS always does."""


def stop_tokens(tokenizer: PreTrainedTokenizerFast, render: Callable[[list[Turn]], str]) -> StopTokens:
    """Find the stop tokens by rendering short conversations; `render` raises `ValueError` if it refuses one."""
    template = _Turns(tokenizer, render)
    eos = tokenizer.eos_token_id
    answer = template.after_answer()
    calls = template.after_tool_calls({eos, *answer})
    end = answer[0] if answer else eos
    ids = dict.fromkeys(number for number in (*answer, *calls, eos) if number is not None)
    return StopTokens(end, calls[0] if calls else end, tuple(ids))


class _Turns:
    def __init__(self, tokenizer: PreTrainedTokenizerFast, render: Callable[[list[Turn]], str]) -> None:
        self.tokenizer, self.render = tokenizer, render
        self.added = {  # without Gemma's runs of blanks
            number for number, token in tokenizer.added_tokens_decoder.items() if token.content.strip(" \n\t▁")
        } - {tokenizer.unk_token_id}

    def after_answer(self) -> list[int]:
        """The tokens that end an answer as the last turn, and before a user turn."""
        thought = {"role": "assistant", "content": ANSWER, **dict.fromkeys(REASONING, THOUGHT)}
        within = self._tokens(self._between([ASKED, thought], THOUGHT, ANSWER))
        turns = [ASKED, {"role": "assistant", "content": ANSWER}]
        last = self._tokens(self._between(turns, ANSWER), within)
        followed = self._between([*turns, {"role": "user", "content": NEXT}], ANSWER, NEXT)
        return list(dict.fromkeys([*last[:1], *self._tokens(followed, within, at_once=True)[:1]]))

    def after_tool_calls(self, known: set[int]) -> list[int]:
        """The token that ends tool calls; empty where it is among the `known` ones, or none is found."""
        for count, as_text in product((2, 1), (False, True)):
            arguments = [{"word": word} for word in WORDS[:count]]
            calls = [
                {"type": "function", "id": f"call0000{number}",
                 "function": {"name": "look", "arguments": json.dumps(argument) if as_text else argument}}
                for number, argument in enumerate(arguments)
            ]  # fmt: skip
            turns = [ASKED, {"role": "assistant", "content": "", "tool_calls": calls}]
            if (closing := self._between(turns, WORDS[count - 1])) is None:
                continue
            within = self._tokens(self._between(turns, *WORDS)) if count == 2 else []
            if not (ends := self._tokens(closing, within)):
                result = {"role": "tool", "name": "look", "tool_call_id": calls[-1]["id"], "content": RESULT}
                ends = self._tokens(self._between([*turns, result], WORDS[count - 1], RESULT), within)
            return [] if known & {*ends} else ends[:1]
        return []

    def _between(self, turns: list[Turn], start: str, end: str = "") -> str | None:
        """The rendered text from the last `start` up to `end`; None where the template omits one of them."""
        try:
            _, start_found, after_start = self.render(turns).rpartition(start)
        except ValueError:
            return None
        between, end_found, _ = after_start.partition(end) if end else (after_start, after_start, "")
        return between if start_found and (end_found or not end) else None

    def _tokens(self, text: str | None, within: Sequence[int] = (), *, at_once: bool = False) -> list[int]:
        """The added tokens in a text, without those `within` an answer; `at_once`: none if anything precedes."""
        ids = self.tokenizer(text or "", add_special_tokens=False).input_ids
        positions = [position for position, number in enumerate(ids) if number in self.added and number not in within]
        if at_once and positions and self.tokenizer.decode(ids[: positions[0]]).strip():
            return []
        return [ids[position] for position in positions]
