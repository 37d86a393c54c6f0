"""Rows of a dataset as token ids."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import takewhile
from operator import itemgetter

from transformers import PreTrainedTokenizerFast

from launcher.core.user_code import CallFailure, try_call
from launcher.spec.data import Dataset, Message, RefusedRow, Row, Text
from launcher.text.stop_tokens import StopTokens, stop_tokens

TEMPLATE = "<template>"
"""What Jinja calls the file of a template, so that errors name its line."""
REFUSAL = "TemplateError"
"""The class of what a template raises by `raise_exception`."""


class Unwritable(ValueError):
    """Why a row cannot be written for this model."""


@dataclass(frozen=True)
class Tokens:
    """Token ids of one row. `mask` is 1 on the tokens to be imitated; a prompt has none."""

    row: int  # its place among the rows that were read: names its random stream
    ids: list[int]
    mask: list[int]


@dataclass(frozen=True)
class Pair:
    """Two answers to one prompt, with their prompt."""

    row: int
    chosen: Tokens
    rejected: Tokens


class Encoder:
    """Writes rows with the tokenizer's chat template where it has one, as plain text otherwise."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, data: Dataset) -> None:
        self.tokenizer, self.data = tokenizer, data
        self.templated = data.chat_template == "auto" and tokenizer.chat_template is not None

    @cached_property
    def stop_tokens(self) -> StopTokens:
        """The tokens that end an answer."""
        if self.templated:
            return stop_tokens(self.tokenizer, self.render)
        return StopTokens(self.tokenizer.eos_token_id, (self.tokenizer.eos_token_id,))

    def prompt(self, number: int, row: Row) -> Tokens | RefusedRow:
        """What the policy reads before it answers."""
        try:
            ids = self.prompt_ids(row.prompt)
        except Unwritable as error:
            return self._refuse(row, str(error))
        if not ids:
            return self._refuse(row, "prompt has no tokens")
        cut = self._cut_prompt(ids)
        return self._refuse_long(row, "prompt", len(ids)) if cut is None else Tokens(number, cut, [])

    def demonstration(self, number: int, row: Row) -> Tokens | RefusedRow:
        """Prompt and answer, the answer's tokens and its end marked."""
        prompt, response = prompt_and_response(row)
        try:
            if response is None:
                ids, mask = self._conversation(turns_of(row.prompt))
            else:
                opening, answer = self.prompt_ids(prompt), self._closing(prompt, response)
                ids, mask = opening + answer, [0] * len(opening) + [1] * len(answer)
        except Unwritable as error:
            return self._refuse(row, str(error))
        return self._limited(row, Tokens(number, ids, mask))

    def pair(self, number: int, row: Row) -> Pair | RefusedRow:
        """The chosen and the rejected answer, each as a demonstration."""
        chosen = self.demonstration(number, row)
        if isinstance(chosen, RefusedRow):
            return chosen
        rejected = self.demonstration(number, replace(row, response=row.rejected))
        if isinstance(rejected, RefusedRow):
            return replace(rejected, reason=f"rejected: {rejected.reason}", raw=repr(row))
        return Pair(number, chosen, rejected)

    def _limited(self, row: Row, tokens: Tokens) -> Tokens | RefusedRow:
        """The answer is what follows the first imitated token; where it is cut, it loses its end."""
        opening = tokens.mask.index(1) if 1 in tokens.mask else len(tokens.mask)
        answer = len(tokens.ids) - opening
        if opening == 0:
            return self._refuse(row, "prompt has no tokens")
        if answer == 0:
            return self._refuse(row, "answer has no tokens")
        cut = self._cut_prompt(tokens.ids[:opening])
        if cut is None:
            return self._refuse_long(row, "prompt", opening)
        limit = self.data.max_response_length
        if answer > limit and self.data.truncation not in ("left", "right"):
            return self._refuse_long(row, "answer", answer)
        ids, mask = tokens.ids[opening : opening + limit], tokens.mask[opening : opening + limit]
        return Tokens(tokens.row, cut + ids, [0] * len(cut) + mask)

    def _cut_prompt(self, ids: list[int]) -> list[int] | None:
        """The prompt within data.max_prompt_length, cut where data.truncation cuts; None where it is too long."""
        limit = self.data.max_prompt_length
        if len(ids) <= limit:
            return ids
        return {"left": ids[-limit:], "right": ids[:limit]}.get(self.data.truncation)

    def opening(self, prompt: Text) -> str:
        """The text that the policy reads before it answers. Raises `Unwritable`."""
        if self.templated:
            return self.render(turns_of(prompt), open_answer=True)
        if isinstance(prompt, str):
            return prompt
        if len(prompt) == 1 and prompt[0].role == "user":
            return prompt[0].content
        raise Unwritable("is a conversation, and the tokenizer has no chat template; use a text prompt")

    def prompt_ids(self, prompt: Text) -> list[int]:
        """`opening` as token ids. Raises `Unwritable`."""
        text = self.opening(prompt)
        return self._ids(text) if self.templated else self.tokenizer(text).input_ids

    def _closing(self, prompt: Text, response: str) -> list[int]:
        """The answer's tokens with the one that ends it."""
        rendered = self.rendered_answer(turns_of(prompt), response) if self.templated else None
        if rendered is None:
            return [*self._ids(response), self.stop_tokens.end]
        ids = self._ids(rendered)
        return ids if {*ids} & {*self.stop_tokens.ids} else [*ids, self.stop_tokens.end]

    def rendered_answer(self, turns: list[dict[str, str]], response: str) -> str | None:
        """What the template writes for the answer; None where it changes the turns before it."""
        before = self.render(turns, open_answer=True)
        whole = self.render([*turns, {"role": "assistant", "content": response}])
        return whole[len(before) :] if whole.startswith(before) else None

    def _conversation(self, turns: list[dict[str, str]]) -> tuple[list[int], list[int]]:
        """Ids and mask of a conversation whose assistant turns are imitated. Raises `Unwritable`."""
        if not self.templated:
            raise Unwritable("is a conversation, and the tokenizer has no chat template; use prompt and response")
        whole = self.render(turns)
        spans = []
        for place, turn in enumerate(turns):
            if turn["role"] == "assistant":
                start, end = self.render(turns[:place], open_answer=True), self.render(turns[: place + 1])
                if not (whole.startswith(start) and whole.startswith(end)):
                    raise Unwritable("the chat template rewrites earlier turns; use one row for each answer")
                spans.append((len(start), len(end)))
        encoded = self.tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
        ids, stops = encoded["input_ids"], self.stop_tokens.ids
        within = [any(a <= first and last <= b for a, b in spans) for first, last in encoded["offset_mapping"]]
        # where a template writes no end, an answer ends with the next turn's first token
        ends = [before and number in stops for before, number in zip([False, *within], ids, strict=False)]
        mask = [int(one or end) for one, end in zip(within, ends, strict=True)]
        last = takewhile(itemgetter(1), zip(reversed(ids), reversed(mask), strict=True))
        if mask and mask[-1] and not any(number in stops for number, _ in last):
            return [*ids, self.stop_tokens.end], [*mask, 1]
        return ids, mask

    def render(self, turns: list[dict[str, str]], open_answer: bool = False) -> str:
        if not turns:
            raise Unwritable("begins with an answer; add a turn before it")
        write = partial(self.tokenizer.apply_chat_template, turns, tokenize=False, add_generation_prompt=open_answer)
        text = try_call(write, TEMPLATE)
        if isinstance(text, CallFailure):
            refused = text.kind == REFUSAL  # some refuse roles, or their order
            raise Unwritable(f"the chat template {'refuses it' if refused else 'fails'}: {text.reason}")
        return text

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False).input_ids

    def _refuse(self, row: Row, reason: str) -> RefusedRow:
        return RefusedRow(row.where, reason, repr(row))

    def _refuse_long(self, row: Row, what: str, length: int) -> RefusedRow:
        setting = "max_prompt_length" if what == "prompt" else "max_response_length"
        limit = self.data.max_prompt_length if what == "prompt" else self.data.max_response_length
        reason = f"{what} has {length} tokens; data.{setting} is {limit}"
        return RefusedRow(row.where, reason, repr(row), wanted=self.data.truncation == "filter")


def prompt_and_response(row: Row) -> tuple[Text, str | None]:
    """Prompt and answer; of a conversation with one answer, which is its end, too."""
    if row.response is not None or isinstance(row.prompt, str):
        return row.prompt, row.response
    *before, last = row.prompt
    if last.role != "assistant" or not before or any(turn.role == "assistant" for turn in before):
        return row.prompt, None
    return tuple(before), last.content


def turns_of(prompt: Text) -> list[dict[str, str]]:
    messages = (Message("user", prompt),) if isinstance(prompt, str) else prompt
    return [{"role": message.role, "content": message.content} for message in messages]
