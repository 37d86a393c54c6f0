"""Checks whether tokenizer and chat template can be loaded, and what they do to the first rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from launcher.core.check_result import CheckResult
from launcher.core.problems import short_repr
from launcher.models import config
from launcher.models.pretrained import LAYOUTS, Pretrained, tokenizer_folder
from launcher.preflight.checks.context import Context
from launcher.text.bounds import TOKENIZER

PIECES = "tokenizer.model"  # used by SentencePiece, and for tiktoken's lines of base64
_CONVERTIBLE = (("vocab.json", "merges.txt"), ("vocab.txt",), ("tekken.json",))
"""Files from which transformers makes a tokenizer without further packages."""
_TIKTOKEN = re.compile(rb"[A-Za-z0-9+/=]+ [0-9]+\r?\n")


def check(context: Context) -> Iterator[CheckResult]:
    """Check the tokenizer's files and texts; nothing where the model has problems of its own."""
    model = context.run.model
    if context.model_problems:
        return
    if isinstance(model, Pretrained) and not model.on_hub:
        folder = tokenizer_folder(model.folder)
        yield from () if (folder / TOKENIZER).is_file() else _check_other_formats(model, folder)
    yield from context.lengths.text


def _check_other_formats(model: Pretrained, folder: Path) -> Iterator[CheckResult]:
    """Check that transformers can make a tokenizer from a folder without tokenizer.json."""
    own_class = config.own_tokenizer(folder)
    if own_class and model.trust_remote_code:
        return
    if any(all((folder / name).is_file() for name in names) for names in _CONVERTIBLE) and not own_class:
        return
    advice = f"put {TOKENIZER} and tokenizer_config.json beside the weights"
    if own_class:
        message = f"the tokenizer of {folder} is Python code that comes with it ({short_repr(own_class)})"
        fix = f"read it, then set model.trust_remote_code=true to run it, or {advice}"
        yield CheckResult("FAIL", "model.path", message, fix)
    elif (folder / PIECES).is_file():  # which has one of two formats, each with a package that reads it
        head = _read_head(folder / PIECES)
        is_tiktoken = _TIKTOKEN.match(head)
        package = "tiktoken" if is_tiktoken else "sentencepiece"
        if not is_tiktoken and not head.startswith(b"\n"):  # SentencePiece: field 1 of the protocol buffer
            message = f"{folder / PIECES} is neither SentencePiece's nor tiktoken's, and there is no {TOKENIZER}"
            yield CheckResult("FAIL", "model.path", message, f"use a complete copy of {PIECES}, or {advice}")
        elif find_spec(package) is None:
            message = f"{folder} has {PIECES} and no {TOKENIZER}, and the package {package} is not installed"
            yield CheckResult("FAIL", "model.path", message, f"run pip install {package}, or {advice}")
    elif not (folder / LAYOUTS[1]).is_file():  # adapters use the tokenizer of a base, which is not here
        yield CheckResult("FAIL", "model.path", f"{folder} holds no tokenizer", advice)


def _read_head(file: Path) -> bytes:
    """The first bytes of a file; none where it cannot be read."""
    with suppress(OSError), file.open("rb") as opened:
        return opened.read(100)
    return b""
