"""Token lengths counted quickly are those that the encoder itself would make."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from launcher.data.files import Files
from launcher.spec.data import Message, Row
from launcher.text.encoder import Encoder, Pair, Tokens
from launcher.text.lengths import Lengths, PieceCounter
from launcher.text.tokenizer import character_tokenizer

QWEN = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TURN = "{{ '<|im_start|>' + m.role + '\\n' + %s + '<|im_end|>\\n' }}"
OPEN = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
ALL = "{%% for m in messages %%}%s{%% endfor %%}"
TEMPLATES = {
    "plain": "{% for m in messages %}" + TURN % "m.content" + "{% endfor %}" + OPEN,
    "trims": "{% for m in messages %}" + TURN % "m.content | trim" + "{% endfor %}" + OPEN,
    "thinks": "{% for m in messages %}" + TURN % "m.content.split('</think>')[-1]" + "{% endfor %}" + OPEN,
    "tools": "{% for m in messages %}{% if m.content.startswith('<tool>') %}tool{% endif %}"
    + TURN % "m.content" + "{% endfor %}" + OPEN,
    "first": "{% for m in messages %}{% if m.content[0] == '[' %}list{% endif %}" + TURN % "m.content" + "{% endfor %}",
    "word": ALL % ("{% if 'json' in m.content %}{{ 'x' * 9 }}{% endif %}" + TURN % "m.content"),
    "set": "{% set cut = '</think>' %}" + ALL % (TURN % "m.content.split(cut)[-1]"),
    "long": ALL % ("{% if m.content|length > 9 %}long{% endif %}" + TURN % "m.content"),
    "refuses": ALL % ("{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}" + TURN % "m.content"),
    "twice": "{% for m in messages %}{{ m.content }}|{{ m.content }}{% endfor %}",
}  # fmt: skip
CORPUS = [
    "How many clips did Natalia sell in April and May?\n\n  12 345 and 6",
    "It's the user's turn. ####",
    "a\tb",
] * 3


def bpe(pattern: str | None, template: str | None, normalizer: Any = None) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer of a few hundred tokens; `pattern` None cuts as GPT-2 does."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizer
    if pattern is None:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        cut = pre_tokenizers.Split(Regex(pattern), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|end|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=360, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|end|>")
    made.chat_template = template
    return made


def encoder(tokenizer: PreTrainedTokenizerFast) -> Encoder:
    return Encoder(tokenizer, Files(max_prompt_length=2**40, max_response_length=2**40))


def rows(*prompts: Any) -> list[Row]:
    return [Row("f:1", prompt) for prompt in prompts]


def truly(made: Encoder, row: Row) -> tuple[int, int, int] | str:
    tokens = made.prompt(0, row)
    return (len(tokens.ids), 0, 1) if isinstance(tokens, Tokens) else tokens.reason


TEXTS = st.one_of(
    st.text(st.sampled_from("ab C1 \n\t'#<>|[]\r.éß\u4e2d\U0001f600\u3000\x1c"), min_size=1, max_size=24),
    st.sampled_from(
        [
            "<|im_end|>",
            "user",
            "x</think>y",
            "<tool>z",
            "[1]",
            " a ",
            "<|im_start|>assistant\n",
            "12345",
            "it's 's",
            "some json here",
        ]
    ),
).filter(str.strip)
ENCODERS = {
    **{f"qwen {name}": encoder(bpe(QWEN, template)) for name, template in TEMPLATES.items()},
    "llama3": encoder(bpe(LLAMA3, TEMPLATES["plain"])),
    "gpt2": encoder(bpe(None, TEMPLATES["plain"])),
    "composed": encoder(bpe(QWEN, TEMPLATES["plain"], normalizers.NFC())),
    "lowercase": encoder(bpe(QWEN, TEMPLATES["plain"], normalizers.Lowercase())),
    "no template": encoder(bpe(QWEN, None)),
    "letters": encoder(character_tokenizer("ab C1")),
}


@pytest.mark.parametrize("name", ENCODERS)
@settings(max_examples=60, deadline=None)
@given(
    prompts=st.lists(
        st.one_of(TEXTS, st.builds(lambda a, b: (Message("system", a), Message("user", b)), TEXTS, TEXTS)),
        min_size=1,
        max_size=6,
    )
)
def test_every_length_is_the_true_one(name: str, prompts: list[Any]) -> None:
    made = ENCODERS[name]
    asked = rows(*prompts)
    assert Lengths(made).of(asked, "prompts") == [truly(made, row) for row in asked]


@pytest.mark.parametrize(
    ("name", "counts"),
    [("qwen plain", True), ("llama3", True), ("gpt2", True), ("composed", True), ("lowercase", False)],
)
def test_pieces_are_counted_where_the_tokenizer_cuts_by_a_pattern(name: str, counts: bool) -> None:
    pieces = PieceCounter.of(ENCODERS[name].tokenizer, ["<|im_start|>user\nIt's 12 clips.<|im_end|>\n"])
    assert (pieces is not None) == counts


@pytest.mark.parametrize("text", ["caf\u00e9", "\u4e2d", "a\x1cb"])
def test_what_regex_engines_may_see_differently_the_tokenizer_counts(text: str) -> None:
    pieces = PieceCounter.of(ENCODERS["qwen plain"].tokenizer, ["a b"])
    assert pieces
    assert pieces.count(text) is None


def test_a_text_on_which_the_two_differ_stops_the_shortcut() -> None:
    """Whatever else a tokenizer may do, the sample finds it."""
    tokenizer = bpe(QWEN, TEMPLATES["plain"])
    assert PieceCounter.of(tokenizer, ["a b"])

    class Odd(PieceCounter):
        def count(self, text: str) -> int | None:
            return 1

    assert Odd.of(tokenizer, ["a b"]) is None


def test_added_tokens_that_are_searched_in_two_rounds_are_left_to_the_tokenizer() -> None:
    tokenizer = bpe(QWEN, TEMPLATES["plain"])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=True)])
    assert PieceCounter.of(tokenizer, ["a b"]) is None
    assert Lengths(encoder(tokenizer)).of(rows("x<tool>y"), "prompts") == [truly(encoder(tokenizer), *rows("x<tool>y"))]


def test_the_longer_answer_of_a_pair_counts() -> None:
    made = ENCODERS["letters"]
    pair = Row("f:1", "ab", "a", rejected="abC")
    both = made.pair(0, pair)
    assert isinstance(both, Pair)
    assert Lengths(made).of([pair], "pairs") == [(2, len(both.rejected.ids) - 2, 1)]
    assert Lengths(made).of([Row("f:1", "ab", "a")], "answers") == [(2, 2, 1)]
    [refused] = Lengths(made).of([Row("f:1", (Message("system", "a"), Message("user", "b")), "a")], "answers")
    assert refused == "is a conversation, and the tokenizer has no chat template; use a text prompt"
