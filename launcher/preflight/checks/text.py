"""Tokenizer and chat template: whether they can be loaded, and what they do to the first rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from launcher.core.check_result import CheckResult
from launcher.core.problems import short_repr
from launcher.models import config
from launcher.models.pretrained import LAYOUTS, Pretrained, tokenizer_folder
from launcher.preflight.checks.context import Context
from launcher.text.bounds import TOKENIZER

PIECES = "tokenizer.model"  # SentencePiece's name, and that of lines in base64 for tiktoken
_CONVERTED = (("vocab.json", "merges.txt"), ("vocab.txt",), ("tekken.json",))
"""Files from which transformers makes a tokenizer without further packages."""
_TIKTOKEN = re.compile(rb"[A-Za-z0-9+/=]+ [0-9]+\r?\n")


def check(context: Context) -> Iterator[CheckResult]:
    """Nothing where the model has problems of its own."""
    model = context.run.model
    if context.model_problems:
        return
    if isinstance(model, Pretrained) and not model.on_hub:
        folder = tokenizer_folder(model.folder)
        yield from () if (folder / TOKENIZER).is_file() else _other_files(model, folder)
    yield from context.lengths.text


def _other_files(model: Pretrained, folder: Path) -> Iterator[CheckResult]:
    """Of a folder without tokenizer.json: whether transformers can make a tokenizer of what it has."""
    own = config.own_tokenizer(folder)
    if own and model.trust_remote_code:
        return
    if any(all((folder / name).is_file() for name in names) for names in _CONVERTED) and not own:
        return
    beside = f"put {TOKENIZER} and tokenizer_config.json beside the weights"
    if own:
        message = f"the tokenizer of {folder} is Python code that comes with it ({short_repr(own)})"
        fix = f"read it, then set model.trust_remote_code=true to run it, or {beside}"
        yield CheckResult("FAIL", "model.path", message, fix)
    elif (folder / PIECES).is_file():
        yield from _pieces(folder / PIECES, beside)
    elif not (folder / LAYOUTS[1]).is_file():  # adapters have that of a base which is not here
        yield CheckResult("FAIL", "model.path", f"{folder} holds no tokenizer", beside)


def _pieces(file: Path, beside: str) -> Iterator[CheckResult]:
    """Of a folder with tokenizer.model alone: it is one of two formats, each with a package that reads it."""
    try:
        with file.open("rb") as opened:
            head = opened.read(100)
    except OSError:
        head = b""
    lines = _TIKTOKEN.match(head)
    package = "tiktoken" if lines else "sentencepiece"
    if not lines and not head.startswith(b"\n"):  # field 1 of its protocol buffer: the pieces
        message = f"{file} is neither SentencePiece's nor tiktoken's, and there is no {TOKENIZER}"
        yield CheckResult("FAIL", "model.path", message, f"use a complete copy of {PIECES}, or {beside}")
    elif find_spec(package) is None:
        message = f"{file.parent} has {PIECES} and no {TOKENIZER}, and the package {package} is not installed"
        yield CheckResult("FAIL", "model.path", message, f"run pip install {package}, or {beside}")
