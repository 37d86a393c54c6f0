"""A model's tokenizer: of every model that has a tokenizer.json, exactly the tokenizer in that file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from launcher.core.problems import Problem, Problems
from launcher.core.user_code import CallFailure, try_call
from launcher.models import config
from launcher.models.pretrained import Pretrained, tokenizer_folder, weights_of
from launcher.models.scratch import ROLE_TOKENS, Scratch
from launcher.spec.model import Model
from launcher.text.bounds import TOKENIZER

CHAT = (
    "{%- for turn in messages -%}<|{{ turn.role }}|>{{ turn.content or '' }}"
    "{%- for call in turn.tool_calls or [] -%}"
    '<tool_call>{"name": {{ call.function.name | tojson }}, '
    '"arguments": {{ call.function.arguments | tojson }}}</tool_call>'
    "{%- endfor -%}<eos>{%- endfor -%}{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"
)
"""The chat template of a `Scratch` model."""


def load_tokenizer(model: Model) -> PreTrainedTokenizerFast:
    """Load the model's tokenizer. Raises `Problems` where it cannot be loaded."""
    if isinstance(model, Scratch):
        return character_tokenizer(model.vocabulary, chat=model.chat)
    assert isinstance(model, Pretrained)
    path = weights_of(model.path)
    options = {"revision": model.revision or "main", "trust_remote_code": model.trust_remote_code}
    tokenizer = try_call(lambda: read_tokenizer(path, **options))  # its files may be arbitrary, and raise any error
    if isinstance(tokenizer, CallFailure):
        file = Path(path, TOKENIZER)
        got = f"the tokenizer of {(str(file) if file.is_file() else path)!r} cannot be loaded: {tokenizer.reason}"
        raise Problems(Problem("model.path", got, "use a complete copy of its tokenizer's files", "bad-file"))
    return tokenizer


def read_tokenizer(path: str, **own: Any) -> PreTrainedTokenizerFast:
    """The tokenizer in tokenizer.json unchanged, without loading torch: AutoTokenizer's class may build a different one
    from its vocabulary. Only for a folder without that file, or with code that may run, AutoTokenizer's. Special tokens
    that the tokenizer lacks are taken from the model's configuration."""
    folder = tokenizer_folder(Path(path))
    path = str(folder)
    if not (folder / TOKENIZER).is_file() or (own.get("trust_remote_code") and config.own_tokenizer(folder)):
        return tokenizer_by_class(path, **own)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(path)
    configs = [config.read(folder, name) or {} for name in ("generation_config.json", "config.json")]
    id_to_token = {number: token for token, number in tokenizer.get_vocab().items()}
    for name in ("eos_token", "bos_token", "pad_token"):
        ids = [number for node in configs for number in as_ids(node.get(f"{name}_id")) if number in id_to_token]
        if getattr(tokenizer, name) is None and ids:
            setattr(tokenizer, name, id_to_token[ids[0]])
    return tokenizer


def tokenizer_by_class(path: str, **own: Any) -> PreTrainedTokenizerFast:
    """The tokenizer of the class that transformers chooses, which may differ from that in tokenizer.json."""
    from transformers import AutoTokenizer  # noqa: PLC0415  late: it knows every model, and loads torch

    return AutoTokenizer.from_pretrained(path, **own)


def as_ids(ids: Any) -> list[int]:
    """The ids that a configuration states, which may be one, a list, or nothing that is an id."""
    return [number for number in (ids if isinstance(ids, list) else [ids]) if type(number) is int]


def character_tokenizer(vocabulary: Sequence[str], *, chat: bool = False) -> PreTrainedTokenizerFast:
    """A tokenizer whose vocabulary is characters and words; it takes the longest word that matches."""
    special = ["<pad>", "<eos>", "<unk>", *(ROLE_TOKENS if chat else ())]
    numbers = {token: number for number, token in enumerate([*special, *vocabulary])}
    words = sorted((token for token in vocabulary if len(token) > 1), key=len, reverse=True)
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(?m)" + "|".join([*map(re.escape, words), "."])), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>",
        clean_up_tokenization_spaces=False,
        **({"additional_special_tokens": [*ROLE_TOKENS], "chat_template": CHAT} if chat else {}),
    )  # fmt: skip


# ---- tokens as text

UNKNOWN = "\N{REPLACEMENT CHARACTER}"
"""What the bytes of an incomplete character are decoded to."""


class TokenTexts:
    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self._texts = dict[int, str]()

    def __call__(self, ids: Sequence[int]) -> list[str]:
        """Each token's text; joined they are the whole text. A character of several tokens is at the first of them."""
        for token in {*ids} - self._texts.keys():
            # some tokenizers drop the leading space of a text's first token, so the text of a second one is taken
            single, double = self.tokenizer.batch_decode([[token], [token, token]])
            self._texts[token] = double[len(single) :]
        texts = [self._texts[token] for token in ids]
        for incomplete, run in groupby(range(len(ids)), lambda position: UNKNOWN in texts[position]):
            if incomplete:
                positions = [*run]
                character = self.tokenizer.decode([ids[position] for position in positions])
                texts[positions[0] : positions[-1] + 1] = [character, *[""] * (len(positions) - 1)]
        return texts
