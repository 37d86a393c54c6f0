"""Token lengths counted quickly are those that the encoder itself would make."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from launcher.data.files import Files
from launcher.spec.data import Message, Row
from launcher.text.encoder import Encoder, Pair, Tokens
from launcher.text.lengths import count_tokens
from launcher.text.tokenizer import character_tokenizer

TURN = "{{ '<|' + m.role + '|>' + m.content | trim }}"
CHAT = "{% for m in messages %}" + TURN + "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
REFUSES = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}" + TURN + "{% endfor %}"
)


def letters(template: str | None) -> PreTrainedTokenizerFast:
    tokenizer = character_tokenizer("ab C1")
    tokenizer.chat_template = template
    return tokenizer


def encoder(tokenizer: PreTrainedTokenizerFast) -> Encoder:
    return Encoder(tokenizer, Files(max_prompt_length=2**40, max_response_length=2**40))


def rows(*prompts: Any) -> list[Row]:
    return [Row("f:1", prompt) for prompt in prompts]


def truly(made: Encoder, row: Row) -> tuple[int, int, int] | str:
    tokens = made.prompt(0, row)
    return (len(tokens.ids), 0, 1) if isinstance(tokens, Tokens) else tokens.reason


TEXTS = st.text("ab C1<|\u4e2d", min_size=1, max_size=24).filter(str.strip)
ASKED = st.one_of(TEXTS, st.builds(lambda a, b: (Message("system", a), Message("user", b)), TEXTS, TEXTS))


@pytest.mark.parametrize("template", [None, CHAT, REFUSES])
@settings(max_examples=40, deadline=None)
@given(prompts=st.lists(ASKED, min_size=1, max_size=6))
def test_every_length_is_the_true_one(template: str | None, prompts: list[Any]) -> None:
    made = encoder(letters(template))
    asked = rows(*prompts)
    assert count_tokens(made, asked, "prompts") == [truly(made, row) for row in asked]


def test_the_longer_answer_of_a_pair_counts() -> None:
    made = encoder(letters(None))
    pair = Row("f:1", "ab", "a", rejected="abC")
    both = made.pair(0, pair)
    assert isinstance(both, Pair)
    assert count_tokens(made, [pair], "pairs") == [(2, len(both.rejected.ids) - 2, 1)]
    assert count_tokens(made, [Row("f:1", "ab", "a")], "answers") == [(2, 2, 1)]
    [refused] = count_tokens(made, [Row("f:1", (Message("system", "a"), Message("user", "b")), "a")], "answers")
    assert refused == "is a conversation, and the tokenizer has no chat template; use a text prompt"
