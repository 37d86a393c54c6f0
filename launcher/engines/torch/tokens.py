"""Rows of a dataset as token ids."""

from __future__ import annotations

from dataclasses import dataclass, replace

from transformers import PreTrainedTokenizerFast

from launcher.spec.data import Dataset, Message, Refused, Row, Text

NO_TEMPLATE = "is a conversation, and the tokenizer has no chat template; a text prompt would do"


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

    def prompt(self, number: int, row: Row) -> Tokens | Refused:
        """What the policy reads before it answers."""
        if isinstance(row.prompt, tuple) and not self.templated:
            return self._refuse(row, NO_TEMPLATE)
        ids = self._opening(row.prompt)
        limit = self.data.max_prompt_length
        if not ids:
            return self._refuse(row, "prompt has no tokens")
        if len(ids) > limit:
            return self._refuse(row, f"prompt has {len(ids)} tokens; data.max_prompt_length is {limit}")
        return Tokens(number, ids, [])

    def demonstration(self, number: int, row: Row) -> Tokens | Refused:
        """Prompt and answer, the answer's tokens and its end marked."""
        found: tuple[list[int], list[int]] | str
        if row.response is None:
            found = self._conversation(row)
        elif isinstance(row.prompt, tuple) and not self.templated:
            found = NO_TEMPLATE
        else:
            opening, answer = self._opening(row.prompt), self._closing(row.prompt, row.response)
            found = (opening + answer, [0] * len(opening) + [1] * len(answer))
        if isinstance(found, str):
            return self._refuse(row, found)
        ids, mask = found
        return self._limited(row, Tokens(number, ids, mask))

    def pair(self, number: int, row: Row) -> Pair | Refused:
        """The chosen and the rejected answer, each as a demonstration."""
        chosen = self.demonstration(number, row)
        if isinstance(chosen, Refused):
            return chosen
        rejected = self.demonstration(number, replace(row, response=row.rejected))
        if isinstance(rejected, Refused):
            return replace(rejected, reason=f"rejected: {rejected.reason}", raw=repr(row))
        return Pair(number, chosen, rejected)

    def _limited(self, row: Row, tokens: Tokens) -> Tokens | Refused:
        """The answer is what follows the first imitated token; a demonstration is never cut."""
        opening = tokens.mask.index(1) if 1 in tokens.mask else len(tokens.mask)
        answer = len(tokens.ids) - opening
        if opening == 0:
            return self._refuse(row, "prompt has no tokens")
        if answer == 0:
            return self._refuse(row, "answer has no tokens")
        if opening > self.data.max_prompt_length:
            limit = self.data.max_prompt_length
            return self._refuse(row, f"prompt has {opening} tokens; data.max_prompt_length is {limit}")
        if answer > self.data.max_response_length:
            limit = self.data.max_response_length
            return self._refuse(row, f"answer has {answer} tokens; data.max_response_length is {limit}")
        return tokens

    def _opening(self, prompt: Text) -> list[int]:
        if not self.templated:
            return self.tokenizer(str(prompt)).input_ids
        return self._ids(self._render(_turns(prompt), open_answer=True))

    def _closing(self, prompt: Text, response: str) -> list[int]:
        """The answer's tokens up to the one that ends it."""
        if not self.templated:
            return [*self._ids(response), self.tokenizer.eos_token_id]
        turns = _turns(prompt)
        before = self._render(turns, open_answer=True)
        whole = self._render([*turns, {"role": "assistant", "content": response}])
        if whole.startswith(before):
            ids = self._ids(whole[len(before) :].rstrip())  # a line's end after the end token is not the answer's
            return ids if self._ends(ids) else [*ids, self.tokenizer.eos_token_id]
        return [*self._ids(response), self.tokenizer.eos_token_id]

    def _ends(self, ids: list[int]) -> bool:
        """Whether the template closes an answer with a token of its own; otherwise no end would be learnt."""
        return bool(ids) and ids[-1] in self.tokenizer.added_tokens_decoder

    def _conversation(self, row: Row) -> tuple[list[int], list[int]] | str:
        """Ids and mask of a conversation whose assistant turns are imitated; a text says why not."""
        if not self.templated:
            return "is a conversation, and the tokenizer has no chat template; prompt and response would do"
        turns = _turns(row.prompt)
        whole = self._render(turns)
        spans = []
        for place, turn in enumerate(turns):
            if turn["role"] == "assistant":
                start, end = self._render(turns[:place], open_answer=True), self._render(turns[: place + 1]).rstrip()
                if not (whole.startswith(start) and whole.startswith(end)):
                    return "the chat template rewrites earlier turns; one row for each answer would do"
                spans.append((len(start), len(end)))
        encoded = self.tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
        mask = [int(any(a <= first and last <= b for a, b in spans)) for first, last in encoded["offset_mapping"]]
        return encoded["input_ids"], mask

    def _render(self, turns: list[dict[str, str]], open_answer: bool = False) -> str:
        return self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=open_answer)

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False).input_ids

    def _refuse(self, row: Row, reason: str) -> Refused:
        return Refused(row.where, reason, repr(row))


def _turns(prompt: Text) -> list[dict[str, str]]:
    messages = (Message("user", prompt),) if isinstance(prompt, str) else prompt
    return [{"role": message.role, "content": message.content} for message in messages]
