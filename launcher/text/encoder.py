"""Rows of a dataset as token ids.

What inference shows is the reference: a model is asked with the prompt that the chat template opens, and must write
what the template has of the answer after it. So each assistant turn is learned behind the tokens that would stand
before it if it were sampled. Where the template writes a turn otherwise once others follow it (most drop its
reasoning), the turns of one conversation are several sequences.
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
    alternating,
    called,
    continued,
    is_call,
    reasoning_in,
    retyped,
    with_parts,
    with_reasoning_apart,
    without_calls,
    without_reasoning,
)

TEMPLATE = "<template>"
"""What Jinja calls the file of a template, so that errors name its line."""
REFUSAL = "TemplateError"
"""The class of what a template raises by `raise_exception`."""
PROBE = "Forty-two."
"""A text that shows what a template writes around one."""
CUTS = ("left", "right")
"""What `data.truncation` cuts with."""
_OPEN_TAG = re.compile(r"<(\w+)>(\s*)\Z")


class Unwritable(ValueError):
    """Why a row cannot be written for this model."""


@dataclass(frozen=True)
class Tokens:
    """Token ids of one row. `mask` is 1 on the tokens to be imitated; a prompt has none."""

    row: int  # its place among the rows that were read: names its random stream
    ids: list[int]
    mask: list[int]
    others: tuple[Tokens, ...] = ()
    """Further sequences of the row: assistant turns that are asked with other tokens than stand in this one."""

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
    """What is read and what is learned of one answer."""

    opening: str
    """The prompt that inference shows."""
    answer: str
    """What the model must write after it."""
    end: int
    """The token that ends the answer where the template writes none."""
    quoted: int
    """Tokens that end answers in what is answered, as in texts about them: they end nothing."""


class Encoder:
    """Writes rows with the tokenizer's chat template where it has one, as plain text otherwise."""

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
        """What the policy reads before it answers."""
        try:
            ids = self.prompt_ids(row.prompt, row.template_args)
        except Unwritable as error:
            return self._refuse(row, str(error))
        if not ids:
            return self._refuse(row, "prompt has no tokens")
        cut = self._cut_prompt(ids)
        return self._refuse_long(row, "prompt", len(ids)) if cut is None else Tokens(number, cut, [])

    def demonstration(self, number: int, row: Row) -> Tokens | RefusedRow:
        """Prompts and answers, the answers' tokens and their ends marked."""
        turns, places = imitated(row, self.data.loss_on)
        try:
            if self.templated:
                exchanges = (self.exchange(turns[:place], turns[place], row.template_args) for place in places)
                found = list(self._sequences(number, exchanges))
            else:
                found = [self._plain(number, row, turns, places)] if places else []
        except Unwritable as error:
            return self._refuse(row, str(error))
        return self._limited(row, found) if found else self._refuse(row, "answer has no tokens")

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

    def _limited(self, row: Row, sequences: Sequence[Tokens]) -> Tokens | RefusedRow:
        """Their prompt is what stands before the first answer of all; where an answer is cut, it loses its end."""
        prompts = prompt_lengths(sequences)
        if prompts[0] == 0:
            return self._refuse(row, "prompt has no tokens")
        longest = max(len(each.ids) - prompt for each, prompt in zip(sequences, prompts, strict=True))
        most, whole, cuts = self.data.max_length, max(len(each.ids) for each in sequences), self.data.truncation in CUTS
        if most and whole > most and not cuts:
            return self._refuse_long(row, "row", whole)
        if self._cut_prompt(sequences[0].ids[: prompts[0]]) is None:
            return self._refuse_long(row, "prompt", prompts[0])
        limit, found = self.data.max_response_length, list[Tokens]()
        if longest > limit and not cuts:
            return self._refuse_long(row, "answer", longest)
        for each, prompt in zip(sequences, prompts, strict=True):
            cut = self._cut_prompt(each.ids[:prompt]) or []
            end = prompt + (min(limit, most - len(cut)) if most else limit)
            ids, mask = each.ids[prompt:end], each.mask[prompt:end]
            if 1 in mask or not found:  # nothing may be left of a later turn
                found.append(Tokens(each.row, cut + ids, [0] * len(cut) + mask))
        return replace(found[0], others=tuple(found[1:]))

    def _cut_prompt(self, ids: list[int]) -> list[int] | None:
        """The prompt within data.max_prompt_length, cut where data.truncation cuts; None where it is too long."""
        limit = min(self.data.max_prompt_length, (self.data.max_length or 2**40) - 1)
        if len(ids) <= limit:
            return ids
        return {"left": ids[-limit:], "right": ids[:limit]}.get(self.data.truncation)

    # ---- plain text

    def _plain(self, number: int, row: Row, turns: Sequence[Turn], places: Sequence[int]) -> Tokens:
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
        """Tokens that the tokenizer writes after a text of its own accord, such as EOS: an answer follows no end."""
        added = self.tokenizer(PROBE, return_special_tokens_mask=True).special_tokens_mask
        return sum(1 for _ in takewhile(bool, reversed(added)))

    def exchange(self, before: list[Turn], answer: Turn, args: Mapping[str, Any] | None = None) -> Exchange:
        """One answer to these turns. Raises `Unwritable`."""
        opening = self.render(before, args, open_answer=True)
        written = self._following_answer(opening, before, answer, args)
        calls = called(answer)
        if not all(name in written for name in calls):
            fix = "use a model whose template writes tool calls, or rows without them"
            raise Unwritable(f"the chat template writes nothing of the turn's tool_calls; {fix}")
        apart = with_reasoning_apart(answer, written)
        if apart and reasoning_in(apart) in (found := self.exchange(before, apart, args)).answer:
            return found
        texts = [text for text in (answer.get("content"), reasoning_in(answer)) if text and text in written]
        ends = [self.added[number] for number in self.stop_tokens.ids if number in self.added]
        quoted = sum(text.count(end) for text in texts for end in ends)
        return Exchange(opening, written, self.stop_tokens.call if calls else self.stop_tokens.end, quoted)

    def _following_answer(self, opening: str, before: list[Turn], answer: Turn, args: Mapping[str, Any] | None) -> str:
        """What the model must write after `opening`; the template may write that otherwise once the answer is there."""
        whole, tag = self.render([*before, answer], args), _OPEN_TAG.search(opening)
        if whole.startswith(opening):
            return whole[len(opening) :]
        if tag and whole.startswith(opening[: tag.start()]):
            return continued(whole[tag.start() :], tag, answer)
        unopened = self.render(before, args)
        plain = without_reasoning(answer, opening.removeprefix(unopened))
        written = self.render([*before, plain], args)
        if opening.startswith(unopened) and written.startswith(unopened):  # the prompt says that nothing is thought
            answer, whole = plain, written
        if whole.startswith(opening):
            return whole[len(opening) :]
        asked, unopened = str(before[-1].get("content") or ""), opening[: common_length(opening, unopened)]
        if asked and (start := unopened.rfind(asked)) >= 0 and opening[start:] in whole:  # rewritten before it alone
            return whole.rpartition(opening[start:])[2]
        marked = self.render([*before, {"role": "assistant", "content": PROBE}], args)
        head, found, _ = marked.rpartition(PROBE)
        if found and whole.startswith(head):
            return whole[len(head) :]
        return answer.get("content") or whole[common_length(opening, whole) :]

    def _sequences(self, number: int, exchanges: Iterator[Exchange]) -> Iterator[Tokens]:
        """The exchanges, each in the sequence of those before it where its prompt begins as they do, up to the end of
        their last answer."""
        text, ids, mask, stop, exact = "", list[int](), list[int](), 0, False
        for opening, answer, end, quoted in exchanges:
            asked = self._grown(text, ids, opening) if exact else self.ids(opening)
            kept = common_length(ids, asked)
            if kept < stop:
                yield Tokens(number, ids, mask)
                mask = []
            mask = [*mask[:kept], *[0] * (len(asked) - min(kept, len(mask)))]
            written, exact = self._following(opening, asked, answer)
            stops = [place for place, number in enumerate(written, start=len(asked)) if number in self.stop_tokens.ids]
            has_end = len(stops) > quoted
            text, ids = opening + answer, [*asked, *written] if has_end else [*asked, *written, end]
            exact, stop = exact and has_end, stops[quoted] + 1 if has_end else len(ids)
            mask += [1] * (len(ids) - len(asked))
        if ids:
            yield Tokens(number, ids, mask)

    def _grown(self, known: str, ids: list[int], text: str) -> list[int]:
        """Ids of `text`, where `ids` are those of `known`: an added token that both hold cuts each in two."""
        place, start = self._last_added(known, ids)
        if place < 0 or not text.startswith(known[: start + len(self.added[ids[place]])]):
            return self.ids(text)
        return ids[:place] + self.ids(text[start:])

    def _following(self, opening: str, ids: list[int], answer: str) -> tuple[list[int], bool]:
        """Ids of `answer` after `opening`, and whether the two together have the ids of both."""
        tail = opening[self._last_added(opening, ids)[1] :]
        before, whole = self.ids(tail), self.ids(tail + answer)
        exact = whole[: len(before)] == before
        return (whole[len(before) :] if exact else self.ids(answer)), exact

    def _last_added(self, text: str, ids: Sequence[int]) -> tuple[int, int]:
        """Where the last added token stands among `ids`, and where in their text; -1 and 0 where there is none."""
        place = next((place for place in reversed(range(len(ids))) if ids[place] in self.added), -1)
        start = text.rfind(self.added[ids[place]]) if place >= 0 else -1
        return (place, start) if start >= 0 else (-1, 0)

    def render(self, turns: list[Turn], args: Mapping[str, Any] | None = None, open_answer: bool = False) -> str:
        """What the template writes. Raises `Unwritable`."""
        if not turns:
            raise Unwritable("begins with an answer; add a turn before it")
        args = {**self.data.template_args, **(args or {})}
        text = self._written(turns, args, open_answer)
        if isinstance(text, CallFailure):
            what = "refuses it" if text.kind == REFUSAL else "fails"  # some refuse roles, or their order
            raise Unwritable(f"the chat template {what}: {text.reason}{self._remedy(turns, args, open_answer)}")
        return text

    def _written(self, turns: Sequence[Turn], args: Mapping[str, Any], open_answer: bool) -> str | CallFailure:
        turns = [self._in_its_form(turn) if turn.get("tool_calls") else turn for turn in turns]
        turns = [turn if turn.keys().isdisjoint(REASONING) else self._with_its_reasoning(turn) for turn in turns]
        if self._in_parts:
            turns = [with_parts(turn) for turn in turns]
        write = partial(self.tokenizer.apply_chat_template, turns, tokenize=False, add_generation_prompt=open_answer)
        return try_call(partial(write, **args), TEMPLATE)

    @cached_property
    def _in_parts(self) -> bool:
        """Whether the template takes contents as lists of parts only, as those of vision models do."""
        write = partial(self.tokenizer.apply_chat_template, tokenize=False)
        turn = {"role": "user", "content": PROBE}
        plain, parted = (try_call(partial(write, [each]), TEMPLATE) for each in (turn, with_parts(turn)))
        return not _shows(plain) and _shows(parted)

    @cached_property
    def _call_forms(self) -> set[tuple[bool, bool]]:
        """How the template takes tool calls: whether with arguments as JSON, and whether beside a content of null."""
        found = set()
        for as_text, null in product((False, True), repeat=2):
            arguments = json.dumps({"text": PROBE}) if as_text else {"text": PROBE}
            function = {"name": "look", "arguments": arguments}
            call = {"type": "function", "id": "call00001", "function": function}
            turn = {"role": "assistant", "content": None if null else "", "tool_calls": [call]}
            turns = [with_parts(each) if self._in_parts else each for each in ({"role": "user", "content": "?"}, turn)]
            text = try_call(partial(self.tokenizer.apply_chat_template, turns, tokenize=False), TEMPLATE)
            if _shows(text) and "\\" not in str(text):  # the JSON of a text of JSON
                found.add((as_text, null))
        return found

    def _in_its_form(self, turn: Turn) -> Turn:
        """A turn with tool calls as the template takes them: some take one form only, and datasets have each."""
        arguments = [call.get("function", call).get("arguments") for call in turn["tool_calls"] if is_call(call)]
        as_text, null = any(isinstance(given, str) for given in arguments), turn.get("content") is None
        for other_type, other_content in ((False, False), (True, False), (False, True), (True, True)):
            form = as_text != other_type, null != other_content
            if form in self._call_forms and not (form[1] and turn.get("content")):
                turn = retyped(turn) if other_type else turn
                return {**turn, "content": None if form[1] else ""} if other_content else turn
        return turn

    def _with_its_reasoning(self, turn: Turn) -> Turn:
        """A turn with its reasoning under the name by which the template reads it."""
        named = [key for key in REASONING if turn.get(key) is not None]
        known = [key for key in REASONING if re.search(rf"""[.'"]{key}\b""", self.template)]
        return turn if not named or not known or {*known} & {*named} else {**turn, known[0]: turn[named[0]]}

    @cached_property
    def template(self) -> str:
        """The text of the chat template; empty where there is none."""
        found = self.tokenizer.chat_template if self.templated else None
        return "\n".join(found.values()) if isinstance(found, dict) else found or ""

    def _remedy(self, turns: list[Turn], args: Mapping[str, Any], open_answer: bool) -> str:
        """What to change of rows that the template does not take: that without which it takes this one."""
        without_system = [turn for turn in turns if turn["role"] != "system"]
        without_tools = {name: value for name, value in args.items() if name != "tools"}
        for fix, fewer, given in (
            ("put the system turn's text into the first user turn", without_system, args),
            ("it takes no tools: leave them out", turns, without_tools),
            ("use a model whose template has tool calls, or rows without them", without_calls(turns), args),
            ("let user and assistant take turns, the user first", alternating(turns), args),
        ):
            changed = fewer and (fewer, given) != (turns, args)
            if changed and not isinstance(self._written(fewer, given, open_answer), CallFailure):
                return f"; {fix}"
        return ""

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


def imitated(row: Row, loss_on: str) -> tuple[list[Turn], list[int]]:
    """The turns of a row, and the places of those to be imitated."""
    turns = turns_of(row.prompt)
    if row.response is not None:
        return [*turns, {"role": "assistant", "content": row.response, **row.response_extra}], [len(turns)]
    places = [place for place, turn in enumerate(turns) if turn["role"] == "assistant"]
    return turns, places[-1:] if loss_on == "last" else places


def with_rejected(row: Row) -> Row:
    """The row with its rejected answer in place of the other."""
    return replace(row, response=row.rejected, response_extra=row.rejected_extra)


def ids_of(tokens: Tokens) -> list[list[int]]:
    return [each.ids for each in tokens.sequences]


def prompt_lengths(sequences: Sequence[Tokens]) -> list[int]:
    """Of each sequence of a row, how many tokens it has of what stands before the first answer."""
    first = sequences[0].ids[: sequences[0].mask.index(1)]
    return [common_length(first, each.ids) for each in sequences]


# ---- texts


def _shows(text: str | CallFailure) -> bool:
    return isinstance(text, str) and PROBE in text


def common_length(ids: Sequence[Any], others: Sequence[Any]) -> int:
    """How many ids, or characters, both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ids, others, strict=False)))
