"""A model's tokenizer alone. It loads no torch, unless `load_tokenizer` has to ask which class a model's is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from launcher.core.checkpoints import MANIFEST
from launcher.core.problems import Problem, Problems
from launcher.core.user_code import CallFailure, try_call
from launcher.models.pretrained import Pretrained, weights_of
from launcher.models.scratch import Scratch
from launcher.spec.model import Model
from launcher.text.bounds import TOKENIZER


def load_tokenizer(model: Model, *, fast: bool = False) -> PreTrainedTokenizerFast:
    """The model's tokenizer alone; `fast` takes a folder's tokenizer.json as it is, without torch: a second instead of
    four. Raises `Problems` where it cannot be loaded."""
    if isinstance(model, Scratch):
        return character_tokenizer(model.alphabet)
    assert isinstance(model, Pretrained)
    path = weights_of(model.path)
    if fast and (file := Path(path) / TOKENIZER).is_file():
        return _loaded(str(file), lambda: PreTrainedTokenizerFast.from_pretrained(path))
    own = {"revision": model.revision or "main", "trust_remote_code": model.trust_remote_code}
    return _loaded(path, lambda: tokenizer_class(Path(path)).from_pretrained(path, **own))


def _loaded(path: str, load: Callable[[], Any]) -> PreTrainedTokenizerFast:
    """What `load` returns. Its files may hold anything, and a library raises whatever comes of it."""
    found = try_call(load)
    if isinstance(found, CallFailure):
        got = f"the tokenizer of {path!r} cannot be loaded: {found.reason}"
        raise Problems(Problem("model.path", got, "use a complete copy of its tokenizer's files", "bad-file"))
    return found


def tokenizer_class(folder: Path) -> Any:
    """A checkpoint's tokenizer is taken as it was saved: for some models (qwen2) AutoTokenizer rebuilds another."""
    ours = (folder.parent / MANIFEST).is_file() and (folder / TOKENIZER).is_file()
    if ours:
        return PreTrainedTokenizerFast
    from transformers import AutoTokenizer  # noqa: PLC0415  late: it knows every model, and loads torch

    return AutoTokenizer


def character_tokenizer(alphabet: str) -> PreTrainedTokenizerFast:
    """A tokenizer with one token for each character."""
    special = ["<pad>", "<eos>", "<unk>"]
    vocabulary = {token: number for number, token in enumerate([*special, *alphabet])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"(?m)."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )  # fmt: skip
