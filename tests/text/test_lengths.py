"""The tokens of a row, and those of tokenizer.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from launcher.data.files import Files
from launcher.models.pretrained import Pretrained
from launcher.spec.data import Message, Row
from launcher.text.encoder import Encoder, Pair
from launcher.text.measure import count_tokens
from launcher.text.tokenizer import character_tokenizer, load_tokenizer


def encoder(tokenizer: PreTrainedTokenizerFast) -> Encoder:
    return Encoder(tokenizer, Files(max_prompt_length=2**40, max_response_length=2**40))


WORDS = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"\p{N}{1,3}|\s+|[^\s\p{N}]+"), "isolated"),
                                 pre_tokenizers.ByteLevel(False, use_regex=False)])  # fmt: skip
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)


@pytest.mark.parametrize(("family", "name", "split"), [
    ("llama", "GPT2Tokenizer", WORDS), ("qwen2", "PreTrainedTokenizerFast", BYTES), ("gpt2", None, BYTES),
    ("qwen2", "LlamaTokenizerFast", WORDS), ("gemma2", "GemmaTokenizer", BYTES), ("cohere", "CohereTokenizer", WORDS),
])  # fmt: skip
def test_tokens_are_those_of_tokenizer_json(tmp_path: Path, family: str, name: str | None, split: Any) -> None:
    """Whatever class the folder names: transformers' own would build another tokenizer of most of these."""
    made, text = Tokenizer(models.BPE()), "In 1907, 12345 people came.\n\n Yes"
    made.pre_tokenizer, made.decoder = split, decoders.ByteLevel()
    made.train_from_iterator([text] * 9, trainers.BpeTrainer(vocab_size=300, show_progress=False,
                             initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))  # fmt: skip
    made.add_special_tokens(["<|end|>"])
    made.save(str(tmp_path / "tokenizer.json"))
    end = made.token_to_id("<|end|>")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name} if name else {}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family, "eos_token_id": [end, 1]}))
    found = load_tokenizer(Pretrained(path=str(tmp_path)))
    assert found(text).input_ids == made.encode(text).ids
    assert (found.eos_token, len(found)) == ("<|end|>", made.get_vocab_size())  # which only config.json names


def test_the_longer_answer_of_a_pair_counts() -> None:
    made = encoder(character_tokenizer("ab C1"))
    pair = Row("f:1", "ab", "a", rejected="abC")
    both = made.pair(0, pair)
    assert isinstance(both, Pair)
    assert count_tokens(made, pair, "pairs") == (2, len(both.rejected.ids) - 2, 1)
    assert count_tokens(made, Row("f:1", "ab", "a"), "answers") == (2, 2, 1)
    refused = count_tokens(made, Row("f:1", (Message("system", "a"), Message("user", "b")), "a"), "answers")
    assert refused == "is a conversation, and the tokenizer has no chat template; use a text prompt"
