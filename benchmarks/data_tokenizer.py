"""A byte-level BPE tokenizer of 32,000 tokens with a chat template, trained on text that every machine has."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

from data_rows import rows
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'assistant' and '</think>' in message.content %}"
    "{% set content = message.content.split('</think>')[-1].lstrip('\\n') %}"
    "{% else %}{% set content = message.content %}{% endif %}"
    "{{ '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def _texts() -> Iterator[str]:
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        yield path.read_text(encoding="utf-8", errors="ignore")
    yield from (f"{row['question']}\n{row['answer']}" for row in rows(5_000, seed=1))


def make(folder: Path) -> Path:
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(WORDS), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=32_000, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    whole = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    whole.chat_template = TEMPLATE
    whole.save_pretrained(folder)
    return folder
