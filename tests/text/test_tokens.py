"""Rows as token ids: what the policy reads, and which tokens are imitated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from launcher.core.settings import settings
from launcher.spec.algorithm import Kind
from launcher.spec.data import Dataset, Message, RefusedRow, Row, Split, Text
from launcher.text.encoder import Encoder, Tokens
from launcher.text.tokenizer import character_tokenizer

SPECIAL = ["<pad>", "<unk>", "<s>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LETTERS = [chr(code) for code in range(32, 127)] + ["\n"]
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@settings
class NoRows(Dataset):
    """Fake: only its limits count here."""

    def read(self, split: Split, kind: Kind) -> Iterator[Row | RefusedRow]:
        yield from ()

    def has(self, split: Split) -> bool:
        return False

    def fingerprint(self) -> str:
        return ""


def chat_tokenizer(template: str | None = CHATML, bos: bool = False) -> PreTrainedTokenizerFast:
    """A token for each character; ends a turn with <|im_end|>; `bos` puts <s> before every text."""
    made = Tokenizer(models.WordLevel({token: number for number, token in enumerate(SPECIAL + LETTERS)}, "<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"(?m)."), "isolated")
    made.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    if bos:
        made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 2)])
    found = PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", unk_token="<unk>", bos_token="<s>", eos_token="<|im_end|>"
    )
    found.chat_template = template
    return found


def encoder(tokenizer: PreTrainedTokenizerFast, **limits: Any) -> Encoder:
    return Encoder(tokenizer, NoRows(**limits))


def row(prompt: Text, response: str | None = None) -> Row:
    return Row("data.jsonl:7", prompt, response)


def good(found: Tokens | RefusedRow) -> Tokens:
    assert isinstance(found, Tokens), found
    return found


def text(encoder: Encoder, ids: list[int]) -> str:
    return "".join(encoder.tokenizer.convert_ids_to_tokens(ids))


def learnt_texts(encoder: Encoder, found: Tokens) -> list[str]:
    """The pieces of text that are imitated."""
    pieces, last = [""], 0
    for number, marked in zip(found.ids, found.mask, strict=True):
        if marked:
            pieces = [*pieces, ""] if not last else pieces
            pieces[-1] += encoder.tokenizer.convert_ids_to_tokens(number)
        last = marked
    return pieces[1:]


def talk(*turns: str) -> tuple[Message, ...]:
    """`role: content` each."""
    return tuple(Message(*turn.split(": ", 1)) for turn in turns)


# ---- plain text


def test_plain_text_by_hand() -> None:
    """`characters("ab>")`: <pad> 0, <eos> 1, <unk> 2, a 3, b 4, > 5."""
    plain = encoder(character_tokenizer("ab>"))
    assert plain.prompt(4, row("ab>")) == Tokens(4, [3, 4, 5], [])
    assert plain.demonstration(9, row("ab>", "ba")) == Tokens(9, [3, 4, 5, 4, 3, 1], [0, 0, 0, 1, 1, 1])
    assert plain.prompt(0, row("aXb")) == Tokens(0, [3, 2, 4], [])  # unknown, and still one token


def test_an_empty_answer_is_its_end_alone() -> None:
    assert good(encoder(character_tokenizer("ab>")).demonstration(0, row("a", ""))).mask == [0, 1]


@pytest.mark.parametrize("template", [None, CHATML])
def test_bos_stands_once_and_only_before_the_prompt(template: str | None) -> None:
    plain = Encoder(chat_tokenizer(template, bos=True), NoRows(chat_template="never"))
    assert text(plain, good(plain.prompt(0, row("hi"))).ids) == "<s>hi"
    found = good(plain.demonstration(0, row("hi", "yo")))
    assert text(plain, found.ids) == "<s>hiyo<|im_end|>"
    assert found.mask == [0, 0, 0, 1, 1, 1]


def test_bos_of_a_template_is_not_doubled() -> None:
    chat = encoder(chat_tokenizer("{{ bos_token }}" + CHATML, bos=True))
    for found in (
        chat.prompt(0, row("hi")),
        chat.demonstration(0, row("hi", "yo")),
        chat.demonstration(0, row(talk("user: hi", "assistant: yo"))),
    ):
        assert text(chat, good(found).ids).startswith("<s><|im_start|>user")
        assert good(found).ids.count(2) == 1


# ---- with a chat template


def test_a_text_is_the_users_turn() -> None:
    chat = encoder(chat_tokenizer())
    found = good(chat.prompt(3, row("1+1?")))
    assert text(chat, found.ids) == "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n"
    assert (found.row, found.mask) == (3, [])
    assert found.ids.count(4) == 2  # <|im_start|> is one token, not twelve characters


def test_a_conversation_is_written_turn_by_turn() -> None:
    chat = encoder(chat_tokenizer())
    found = good(chat.prompt(0, row(talk("system: be brief", "user: a", "assistant: b", "user: c"))))
    assert text(chat, found.ids) == (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
        "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("prompt", ["1+1?", talk("user: 1+1?")])
def test_of_a_demonstration_the_answer_and_its_end_are_imitated(prompt: Text) -> None:
    chat = encoder(chat_tokenizer())
    found = good(chat.demonstration(0, row(prompt, "it is 2")))
    assert text(chat, found.ids) == "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\nit is 2<|im_end|>\n"
    assert learnt_texts(chat, found) == ["it is 2<|im_end|>\n"]  # as TRL's templates for training say


def test_prompt_and_demonstration_begin_alike() -> None:
    """What is imitated is what the policy will be asked: the same tokens up to the answer."""
    chat = encoder(chat_tokenizer())
    asked, shown = good(chat.prompt(0, row("1+1?"))), good(chat.demonstration(0, row("1+1?", "2")))
    assert shown.ids[: shown.mask.index(1)] == asked.ids


def test_every_assistant_turn_of_a_conversation_is_imitated() -> None:
    chat = encoder(chat_tokenizer())
    turns = talk("system: s", "user: a\nassistant", "assistant: one", "user: b", "tool: t", "assistant: two  ")
    found = good(chat.demonstration(0, row(turns)))
    assert learnt_texts(chat, found) == ["one<|im_end|>\n", "two  <|im_end|>\n"]
    whole = chat.tokenizer.apply_chat_template(
        [{"role": turn.role, "content": turn.content} for turn in turns], tokenize=False
    )
    assert text(chat, found.ids) == whole  # nothing is lost and nothing added


def test_one_turn_and_prompt_with_response_are_imitated_alike() -> None:
    chat = encoder(chat_tokenizer())
    turns = good(chat.demonstration(0, row(talk("user: hi", "assistant: yo"))))
    pair = good(chat.demonstration(0, row("hi", "yo")))
    assert learnt_texts(chat, turns) == learnt_texts(chat, pair)
    assert turns.ids[: len(pair.ids)] == pair.ids


REWRITES = CHATML.replace("{{ message.content }}", "{{ message.content if loop.last else message.content | upper }}")


def test_a_template_that_rewrites_earlier_turns_is_refused() -> None:
    """Its turns were never read by a model in the form in which they would be imitated."""
    chat = encoder(chat_tokenizer(REWRITES))
    found = chat.demonstration(0, row(talk("user: a", "assistant: one", "user: b", "assistant: two")))
    assert isinstance(found, RefusedRow)
    assert found.reason == "the chat template rewrites earlier turns; use one row for each answer"


def test_a_template_that_drops_the_thoughts_of_earlier_turns_can_show_the_last_answer() -> None:
    chat = encoder(chat_tokenizer(REWRITES.replace("| upper", ".split('>')[-1]")))
    found = good(chat.demonstration(0, row(talk("user: a", "assistant: t>one", "user: b"), "t>two")))
    assert learnt_texts(chat, found) == ["t>two<|im_end|>\n"]
    assert "\none<|im_end|>" in text(chat, found.ids)


OPENS_OTHERWISE = CHATML.replace("<|im_start|>assistant\n{% endif", "<|im_start|>assistant\n<think>\n{% endif")


def test_a_template_that_opens_answers_in_its_own_way_gets_answer_and_end_behind_it() -> None:
    """The opened answer is not how a finished one begins, so the answer is put there as it is."""
    chat = encoder(chat_tokenizer(OPENS_OTHERWISE))
    found = good(chat.demonstration(0, row("a", "b")))
    assert text(chat, found.ids) == "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n<think>\nb<|im_end|>"
    assert learnt_texts(chat, found) == ["b<|im_end|>"]


def test_never_leaves_the_template_out() -> None:
    plain = encoder(chat_tokenizer(), chat_template="never")
    assert text(plain, good(plain.prompt(0, row("hi"))).ids) == "hi"
    found = good(plain.demonstration(0, row("hi", "yo")))
    assert text(plain, found.ids) == "hiyo<|im_end|>"


# ---- refused, with words


def reason(found: Tokens | RefusedRow) -> str:
    assert isinstance(found, RefusedRow), found
    assert found.where == "data.jsonl:7"
    return found.reason


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda plain: plain.prompt(0, row("")), "prompt has no tokens"),
        (lambda plain: plain.demonstration(0, row("", "a")), "prompt has no tokens"),
        (lambda plain: plain.prompt(0, row("aaaa")), "prompt has 4 tokens; data.max_prompt_length is 3"),
        (lambda plain: plain.demonstration(0, row("aaaa", "a")), "prompt has 4 tokens; data.max_prompt_length is 3"),
        (lambda plain: plain.demonstration(0, row("a", "aa")), "answer has 3 tokens; data.max_response_length is 2"),
        (
            lambda plain: plain.prompt(0, row(talk("system: b", "user: a"))),
            "is a conversation, and the tokenizer has no chat template; use a text prompt",
        ),
        (
            lambda plain: plain.demonstration(0, row(talk("system: b", "user: a"), "b")),
            "is a conversation, and the tokenizer has no chat template; use a text prompt",
        ),
        (
            lambda plain: plain.demonstration(0, row(talk("system: b", "user: a", "assistant: b"))),
            "is a conversation, and the tokenizer has no chat template; use a text prompt",
        ),
        (
            lambda plain: plain.demonstration(0, row(talk("user: a", "assistant: b", "user: a", "assistant: b"))),
            "is a conversation, and the tokenizer has no chat template; use prompt and response",
        ),
    ],
)
def test_what_plain_text_cannot_hold(make: Callable[[Encoder], Tokens | RefusedRow], words: str) -> None:
    assert reason(make(encoder(character_tokenizer("ab>"), max_prompt_length=3, max_response_length=2))) == words


def test_a_single_question_needs_no_template() -> None:
    """Prepared rows are messages, and a model without a template reads them as the text they came from."""
    plain = encoder(character_tokenizer("ab>"))
    assert plain.prompt(0, row(talk("user: a"))) == plain.prompt(0, row("a"))
    assert plain.demonstration(0, row(talk("user: a"), "b")) == plain.demonstration(0, row("a", "b"))
    assert plain.demonstration(0, row(talk("user: a", "assistant: b"))) == plain.demonstration(0, row("a", "b"))


@pytest.mark.parametrize(
    ("truncation", "prompt", "answer"),
    [
        ("left", [4, 5, 3], [4, 4, 4]),  # b, >, a: the prompt's beginning is gone, and the answer's end
        ("right", [3, 4, 4], [4, 4, 4]),  # a, b, b
    ],
)
def test_what_is_too_long_is_cut(truncation: Any, prompt: list[int], answer: list[int]) -> None:
    cut = encoder(character_tokenizer("ab>"), max_prompt_length=3, max_response_length=3, truncation=truncation)
    asked = cut.prompt(0, row("abb>a"))
    assert isinstance(asked, Tokens)
    assert asked.ids == ([4, 5, 3] if truncation == "left" else [3, 4, 4])
    shown = cut.demonstration(0, row("abb>a", "bbbbb"))
    assert isinstance(shown, Tokens)
    assert (shown.ids, shown.mask) == (prompt + answer, [0, 0, 0, 1, 1, 1])


def test_what_is_too_long_is_left_out_on_demand() -> None:
    refused = encoder(character_tokenizer("ab>"), max_prompt_length=3, truncation="filter").prompt(0, row("abb>a"))
    assert isinstance(refused, RefusedRow)
    assert refused.wanted
    kept = encoder(character_tokenizer("ab>"), max_prompt_length=3).prompt(0, row("abb>a"))
    assert isinstance(kept, RefusedRow)
    assert not kept.wanted


def test_the_longest_that_is_taken() -> None:
    plain = encoder(character_tokenizer("ab>"), max_prompt_length=3, max_response_length=2)
    assert len(good(plain.prompt(0, row("aaa"))).ids) == 3
    assert len(good(plain.demonstration(0, row("aaa", "b"))).ids) == 5  # with its end, the answer has 2


def test_the_limits_of_a_conversation_are_before_and_from_its_first_answer_on() -> None:
    turns = row(talk("user: a", "assistant: b", "user: c", "assistant: d"))
    # <|im_start|>user\na<|im_end|>\n is 9 tokens, <|im_start|>assistant\n 11; an answer with its end is 2, then \n
    opening, answer = 9 + 11, 2 + 1 + 9 + 11 + 2 + 1
    taken = encoder(chat_tokenizer(), max_prompt_length=opening, max_response_length=answer)
    assert len(good(taken.demonstration(0, turns)).ids) == opening + answer
    short = encoder(chat_tokenizer(), max_prompt_length=opening - 1, max_response_length=answer)
    assert reason(short.demonstration(0, turns)) == f"prompt has {opening} tokens; data.max_prompt_length is 19"
    short = encoder(chat_tokenizer(), max_prompt_length=opening, max_response_length=answer - 1)
    assert reason(short.demonstration(0, turns)) == f"answer has {answer} tokens; data.max_response_length is 25"


def test_a_conversation_without_an_answer_is_refused() -> None:
    assert reason(encoder(chat_tokenizer()).demonstration(0, row(talk("user: a")))) == "answer has no tokens"


def test_a_refused_row_is_kept_whole() -> None:
    found = encoder(character_tokenizer("ab>")).prompt(0, row(""))
    assert isinstance(found, RefusedRow)
    assert found.raw == repr(row(""))
