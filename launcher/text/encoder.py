"""Encodes rows of a dataset as token ids.

Inference is the reference: there a model reads the prompt that the chat template opens, and must write what the
template renders of the answer. So each assistant turn is learned after the tokens that would precede it if it were
sampled. Where the template renders a turn differently once others follow it (most drop its reasoning), a conversation
becomes several sequences.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product, takewhile
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerFast

from launcher.core.user_code import CallFailure, try_call
from launcher.spec.data import Dataset, Message, RefusedRow, Row, Text
from launcher.text.bounds import EQUAL
from launcher.text.stop_tokens import REASONING, StopTokens, Turn, stop_tokens
from launcher.text.turns import (
    called,
    continued,
    is_call,
    reasoning_in,
    retyped,
    with_parts,
    with_reasoning_apart,
    without_reasoning,
)

TEMPLATE = "<template>"
"""The file name that Jinja gives to a template in tracebacks, where the line of an error is found."""
REFUSAL = "TemplateError"
"""The class of the error that a template's `raise_exception` raises."""
PROBE = "Forty-two."
"""A content by which rendering shows what a template writes around contents."""
CUTS = ("left", "right")
"""Values of `data.truncation` that cut; the others refuse or filter long rows."""
_OPEN_TAG = re.compile(r"<(\w+)>(\s*)\Z")


class Unwritable(ValueError):
    """A row cannot be written for this model; the message says why."""


@dataclass(frozen=True)
class Tokens:
    """Token ids of one row. `mask` is 1 on the tokens to be imitated; a prompt has none."""

    row: int  # index among the rows that were read: names its random stream
    ids: list[int]
    mask: list[int]
    others: tuple[Tokens, ...] = ()
    """Further sequences of the row: assistant turns whose prompt differs from the tokens of this sequence."""

    @property
    def sequences(self) -> tuple[Tokens, ...]:
        return (self, *self.others)


@dataclass(frozen=True)
class Pair:
    """Two answers to one prompt, with their prompt."""

    row: int
    chosen: Tokens
    rejected: Tokens


class Exchange(NamedTuple):
    """The prompt of one answer, and the text that is learned after it."""

    opening: str
    """The prompt as at inference, up to where the answer begins."""
    answer: str
    """The text that the model must write after it."""
    end: int
    """The token that ends the answer where the template writes none."""
    quoted: int
    """Stop tokens that the answer's own text quotes, which do not end it."""


class Encoder:
    """Encodes rows with the tokenizer's chat template if it has one, otherwise as plain text."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, data: Dataset) -> None:
        self.tokenizer, self.data = tokenizer, data
        self.templated = data.chat_template == "auto" and tokenizer.chat_template is not None
        self.added = {number: token.content for number, token in tokenizer.added_tokens_decoder.items()}

    @cached_property
    def stop_tokens(self) -> StopTokens:
        """The tokens that end an answer."""
        if self.templated:
            return stop_tokens(self.tokenizer, self.render)
        eos = self.tokenizer.eos_token_id
        return StopTokens(eos, eos, (eos,))

    def prompt(self, number: int, row: Row) -> Tokens | RefusedRow:
        """The token ids that the policy reads before it answers; `mask` is empty."""
        try:
            ids = self.prompt_ids(row.prompt, row.template_args)
        except Unwritable as error:
            return self._refuse(row, str(error))
        if not ids:
            return self._refuse(row, "prompt has no tokens")
        cut = self._cut_prompt(ids)
        return self._refuse_long(row, "prompt", len(ids)) if cut is None else Tokens(number, cut, [])

    def demonstration(self, number: int, row: Row) -> Tokens | RefusedRow:
        """Prompts and answers; `mask` is 1 on the answers' tokens and their end tokens."""
        turns, places = imitated_turns(row, self.data.loss_on)
        try:
            if self.templated:
                exchanges = (self.exchange(turns[:place], turns[place], row.template_args) for place in places)
                sequences = list(self._join_exchanges(number, exchanges))
            else:
                sequences = [self._encode_plain(number, row, turns, places)] if places else []
        except Unwritable as error:
            return self._refuse(row, str(error))
        return self._limit_lengths(row, sequences) if sequences else self._refuse(row, "answer has no tokens")

    def pair(self, number: int, row: Row) -> Pair | RefusedRow:
        """The chosen and the rejected answer, each as a demonstration."""
        chosen = self.demonstration(number, row)
        if isinstance(chosen, RefusedRow):
            return chosen
        rejected = self.demonstration(number, with_rejected(row))
        if isinstance(rejected, RefusedRow):
            return replace(rejected, reason=f"rejected: {rejected.reason}", raw=repr(row))
        if ids_of(chosen) == ids_of(rejected):
            return self._refuse(row, EQUAL)
        return Pair(number, chosen, rejected)

    # ---- lengths

    def _limit_lengths(self, row: Row, sequences: Sequence[Tokens]) -> Tokens | RefusedRow:
        """Apply the length limits. The prompt is all before the first answer; an answer is cut at its end."""
        prompts = prompt_lengths(sequences)
        if prompts[0] == 0:
            return self._refuse(row, "prompt has no tokens")
        longest_answer = max(len(each.ids) - prompt for each, prompt in zip(sequences, prompts, strict=True))
        limit, size, cuts = self.data.max_length, max(len(each.ids) for each in sequences), self.data.truncation in CUTS
        if limit and size > limit and not cuts:
            return self._refuse_long(row, "row", size)
        if self._cut_prompt(sequences[0].ids[: prompts[0]]) is None:
            return self._refuse_long(row, "prompt", prompts[0])
        max_answer, limited = self.data.max_response_length, list[Tokens]()
        if longest_answer > max_answer and not cuts:
            return self._refuse_long(row, "answer", longest_answer)
        for each, prompt in zip(sequences, prompts, strict=True):
            cut = self._cut_prompt(each.ids[:prompt]) or []
            end = prompt + (min(max_answer, limit - len(cut)) if limit else max_answer)
            ids, mask = each.ids[prompt:end], each.mask[prompt:end]
            if 1 in mask or not limited:  # a later answer may be cut off entirely
                limited.append(Tokens(each.row, cut + ids, [0] * len(cut) + mask))
        return replace(limited[0], others=tuple(limited[1:]))

    def _cut_prompt(self, ids: list[int]) -> list[int] | None:
        """The prompt within data.max_prompt_length, cut where data.truncation cuts; None where it is too long."""
        limit = min(self.data.max_prompt_length, (self.data.max_length or 2**40) - 1)
        if len(ids) <= limit:
            return ids
        return {"left": ids[-limit:], "right": ids[:limit]}.get(self.data.truncation)

    # ---- plain text

    def _encode_plain(self, number: int, row: Row, turns: Sequence[Turn], places: Sequence[int]) -> Tokens:
        """One answer without a template. Raises `Unwritable` for a conversation."""
        prompt = row.prompt if isinstance(row.prompt, str) or row.response is not None else row.prompt[: places[0]]
        if len(places) > 1 or places[0] != len(turns) - 1:
            raise Unwritable("is a conversation, and the tokenizer has no chat template; use prompt and response")
        opening, answer = self.prompt_ids(prompt), self.ids(turns[-1]["content"] or "")
        answer.append(self.stop_tokens.end)
        return Tokens(number, opening + answer, [0] * len(opening) + [1] * len(answer))

    # ---- with a template

    def opening(self, prompt: Text, args: Mapping[str, Any] | None = None) -> str:
        """The text that the policy reads before it answers. Raises `Unwritable`."""
        if self.templated:
            return self.render(turns_of(prompt), args, open_answer=True)
        if isinstance(prompt, str):
            return prompt
        if len(prompt) == 1 and prompt[0].role == "user":
            return prompt[0].content
        raise Unwritable("is a conversation, and the tokenizer has no chat template; use a text prompt")

    def prompt_ids(self, prompt: Text, args: Mapping[str, Any] | None = None) -> list[int]:
        """`opening` as token ids. Raises `Unwritable`."""
        text = self.opening(prompt, args)
        if self.templated:
            return self.ids(text)
        ids: list[int] = self.tokenizer(text).input_ids
        return ids[: len(ids) - self.n_appended]

    @cached_property
    def n_appended(self) -> int:
        """Number of special tokens, such as EOS, that the tokenizer appends to a text; a prompt must not have them."""
        added = self.tokenizer(PROBE, return_special_tokens_mask=True).special_tokens_mask
        return sum(1 for _ in takewhile(bool, reversed(added)))

    def exchange(self, before: list[Turn], answer: Turn, args: Mapping[str, Any] | None = None) -> Exchange:
        """The exchange of `answer` after the turns `before`. Raises `Unwritable`."""
        opening = self.render(before, args, open_answer=True)
        target = self._render_answer(opening, before, answer, args)
        calls = called(answer)
        if not all(name in target for name in calls):
            fix = "use a model whose template writes tool calls, or rows without them"
            raise Unwritable(f"the chat template writes nothing of the turn's tool_calls; {fix}")
        separated = with_reasoning_apart(answer, target)
        if separated and reasoning_in(separated) in (exchange := self.exchange(before, separated, args)).answer:
            return exchange
        texts = [text for text in (answer.get("content"), reasoning_in(answer)) if text and text in target]
        ends = [self.added[number] for number in self.stop_tokens.ids if number in self.added]
        quoted = sum(text.count(end) for text in texts for end in ends)
        return Exchange(opening, target, self.stop_tokens.call if calls else self.stop_tokens.end, quoted)

    def _render_answer(self, opening: str, before: list[Turn], answer: Turn, args: Mapping[str, Any] | None) -> str:
        """The text to learn after `opening`, which the template may write differently once the answer follows."""
        rendered, tag = self.render([*before, answer], args), _OPEN_TAG.search(opening)
        if rendered.startswith(opening):
            return rendered[len(opening) :]
        if tag and rendered.startswith(opening[: tag.start()]):
            return continued(rendered[tag.start() :], tag, answer)
        unopened = self.render(before, args)
        plain = without_reasoning(answer, opening.removeprefix(unopened))
        written = self.render([*before, plain], args)
        if opening.startswith(unopened) and written.startswith(unopened):  # the prompt closes an empty thought
            answer, rendered = plain, written
        if rendered.startswith(opening):
            return rendered[len(opening) :]
        last, unopened = str(before[-1].get("content") or ""), opening[: common_length(opening, unopened)]
        if last and (start := unopened.rfind(last)) >= 0 and opening[start:] in rendered:  # only text before it differs
            return rendered.rpartition(opening[start:])[2]
        probed = self.render([*before, {"role": "assistant", "content": PROBE}], args)
        head, probe, _ = probed.rpartition(PROBE)
        if probe and rendered.startswith(head):
            return rendered[len(head) :]
        return answer.get("content") or rendered[common_length(opening, rendered) :]

    def _join_exchanges(self, number: int, exchanges: Iterator[Exchange]) -> Iterator[Tokens]:
        """Join exchanges into sequences: an exchange continues the sequence before it if its prompt starts with that,
        up to the end of its last answer; otherwise it starts a sequence."""
        text, ids, mask, answer_end, exact = "", list[int](), list[int](), 0, False
        for opening, answer, end, quoted in exchanges:
            prompt_ids = self._extend_ids(text, ids, opening) if exact else self.ids(opening)
            n_shared = common_length(ids, prompt_ids)
            if n_shared < answer_end:
                yield Tokens(number, ids, mask)
                mask = []
            mask = [*mask[:n_shared], *[0] * (len(prompt_ids) - min(n_shared, len(mask)))]
            answer_ids, exact = self._encode_answer(opening, prompt_ids, answer)
            stops = [i for i, token in enumerate(answer_ids, start=len(prompt_ids)) if token in self.stop_tokens.ids]
            has_end = len(stops) > quoted
            text, ids = opening + answer, [*prompt_ids, *answer_ids] if has_end else [*prompt_ids, *answer_ids, end]
            exact, answer_end = exact and has_end, stops[quoted] + 1 if has_end else len(ids)
            mask += [1] * (len(ids) - len(prompt_ids))
        if ids:
            yield Tokens(number, ids, mask)

    def _extend_ids(self, prefix: str, prefix_ids: list[int], text: str) -> list[int]:
        """Ids of `text`, given those of its `prefix`; only what follows the last shared added token is tokenized."""
        index, start = self._find_last_added(prefix, prefix_ids)
        if index < 0 or not text.startswith(prefix[: start + len(self.added[prefix_ids[index]])]):
            return self.ids(text)
        return prefix_ids[:index] + self.ids(text[start:])

    def _encode_answer(self, opening: str, ids: list[int], answer: str) -> tuple[list[int], bool]:
        """Ids of `answer` after `opening`, and whether tokenizing both as one text gives the same ids."""
        tail = opening[self._find_last_added(opening, ids)[1] :]
        tail_ids, joint_ids = self.ids(tail), self.ids(tail + answer)
        exact = joint_ids[: len(tail_ids)] == tail_ids
        return (joint_ids[len(tail_ids) :] if exact else self.ids(answer)), exact

    def _find_last_added(self, text: str, ids: Sequence[int]) -> tuple[int, int]:
        """The index of the last added token in `ids` and its offset in `text`; -1 and 0 where there is none."""
        index = next((index for index in reversed(range(len(ids))) if ids[index] in self.added), -1)
        start = text.rfind(self.added[ids[index]]) if index >= 0 else -1
        return (index, start) if start >= 0 else (-1, 0)

    def render(self, turns: list[Turn], args: Mapping[str, Any] | None = None, open_answer: bool = False) -> str:
        """The turns as the chat template writes them. Raises `Unwritable`."""
        if not turns:
            raise Unwritable("begins with an answer; add a turn before it")
        args = {**self.data.template_args, **(args or {})}
        text = self._apply_template(turns, args, open_answer)
        if isinstance(text, CallFailure):
            what = "refuses it" if text.kind == REFUSAL else "fails"  # some refuse roles, or their order
            raise Unwritable(f"the chat template {what}: {text.reason}")
        return text

    def _apply_template(self, turns: Sequence[Turn], args: Mapping[str, Any], open_answer: bool) -> str | CallFailure:
        turns = [self._adapt_calls(turn) if turn.get("tool_calls") else turn for turn in turns]
        turns = [turn if turn.keys().isdisjoint(REASONING) else self._adapt_reasoning(turn) for turn in turns]
        if self._takes_parts:
            turns = [with_parts(turn) for turn in turns]
        write = partial(self.tokenizer.apply_chat_template, turns, tokenize=False, add_generation_prompt=open_answer)
        return try_call(partial(write, **args), TEMPLATE)

    @cached_property
    def _takes_parts(self) -> bool:
        """Whether the template takes contents only as lists of parts, as vision models' templates do."""
        turn = {"role": "user", "content": PROBE}
        return not self._probed([turn]) and bool(self._probed([with_parts(turn)]))

    def _probed(self, turns: Sequence[Turn]) -> str:
        """What the template writes of turns that hold `PROBE`; empty where it fails, or leaves that out."""
        text = try_call(partial(self.tokenizer.apply_chat_template, turns, tokenize=False), TEMPLATE)
        return text if isinstance(text, str) and PROBE in text else ""

    @cached_property
    def _call_forms(self) -> set[tuple[bool, bool]]:
        """Forms of tool calls that the template takes: (arguments are JSON text, content is null)."""
        forms = set()
        for as_text, is_null in product((False, True), repeat=2):
            arguments = json.dumps({"text": PROBE}) if as_text else {"text": PROBE}
            function = {"name": "look", "arguments": arguments}
            call = {"type": "function", "id": "call00001", "function": function}
            turn = {"role": "assistant", "content": None if is_null else "", "tool_calls": [call]}
            turns = [with_parts(one) if self._takes_parts else one for one in ({"role": "user", "content": "?"}, turn)]
            text = self._probed(turns)
            if text and "\\" not in text:  # a backslash: JSON text was encoded again
                forms.add((as_text, is_null))
        return forms

    def _adapt_calls(self, turn: Turn) -> Turn:
        """A turn with its tool calls in a form that the template takes: many take one only, and datasets vary."""
        arguments = [call.get("function", call).get("arguments") for call in turn["tool_calls"] if is_call(call)]
        as_text, is_null = any(isinstance(value, str) for value in arguments), turn.get("content") is None
        for change_type, change_content in ((False, False), (True, False), (False, True), (True, True)):
            form = as_text != change_type, is_null != change_content
            if form in self._call_forms and not (form[1] and turn.get("content")):
                turn = retyped(turn) if change_type else turn
                return {**turn, "content": None if form[1] else ""} if change_content else turn
        return turn

    def _adapt_reasoning(self, turn: Turn) -> Turn:
        """A turn with its reasoning under the key that the template reads."""
        keys = [key for key in REASONING if turn.get(key) is not None]
        reads = [key for key in REASONING if re.search(rf"""[.'"]{key}\b""", self.template)]
        return turn if not keys or not reads or {*reads} & {*keys} else {**turn, reads[0]: turn[keys[0]]}

    @cached_property
    def template(self) -> str:
        """The text of the chat template; empty where there is none."""
        template = self.tokenizer.chat_template if self.templated else None
        return "\n".join(template.values()) if isinstance(template, dict) else template or ""

    def ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False).input_ids

    def _refuse(self, row: Row, reason: str) -> RefusedRow:
        return RefusedRow(row.where, reason, repr(row))

    def _refuse_long(self, row: Row, what: str, length: int) -> RefusedRow:
        setting = {"prompt": "max_prompt_length", "answer": "max_response_length", "row": "max_length"}[what]
        reason = f"{what} has {length} tokens; data.{setting} is {getattr(self.data, setting)}"
        return RefusedRow(row.where, reason, repr(row), wanted=self.data.truncation == "filter")


# ---- rows


def turns_of(prompt: Text) -> list[Turn]:
    return [message.node for message in ((Message("user", prompt),) if isinstance(prompt, str) else prompt)]


def imitated_turns(row: Row, loss_on: str) -> tuple[list[Turn], list[int]]:
    """The turns of a row, and the indices of those to be imitated."""
    turns = turns_of(row.prompt)
    if row.response is not None:
        return [*turns, {"role": "assistant", "content": row.response, **row.response_extra}], [len(turns)]
    places = [index for index, turn in enumerate(turns) if turn["role"] == "assistant"]
    return turns, places[-1:] if loss_on == "last" else places


def with_rejected(row: Row) -> Row:
    """The row with its rejected answer in place of the other."""
    return replace(row, response=row.rejected, response_extra=row.rejected_extra)


def ids_of(tokens: Tokens) -> list[list[int]]:
    return [each.ids for each in tokens.sequences]


def prompt_lengths(sequences: Sequence[Tokens]) -> list[int]:
    """For each sequence of a row, how many of its first tokens equal those before the row's first answer."""
    first = sequences[0].ids[: sequences[0].mask.index(1)]
    return [common_length(first, each.ids) for each in sequences]


# ---- texts


def common_length(ids: Sequence[Any], others: Sequence[Any]) -> int:
    """Length of the longest common prefix of two sequences of ids or characters."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ids, others, strict=False)))
