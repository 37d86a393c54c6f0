"""A model's chat template, read from its files without loading a tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

from launcher.core.problems import Problems
from launcher.models.pretrained import Pretrained, weights_of
from launcher.models.scratch import Scratch
from launcher.spec.model import Model

_ENDS = 2  # what a tokenizer itself puts around a text


def read_template(folder: Path) -> str | None:
    """The chat template of a model's folder; "" where it has none, None where its files cannot be read."""
    try:
        single = folder / "chat_template.jinja"
        if single.is_file():
            return single.read_text(encoding="utf-8")
        template = json.loads((folder / "tokenizer_config.json").read_bytes()).get("chat_template", "")
    except (OSError, ValueError, AttributeError):
        return None
    return template if isinstance(template, str) else json.dumps(template)


def longest_around(model: Model) -> int | None:
    """More tokens than any template of the model puts around a row's texts; None where that is not known.

    Only a model without a template is known: one may write its constant text for every turn.
    """
    if isinstance(model, Scratch):
        return _ENDS
    if not isinstance(model, Pretrained) or model.on_hub:
        return None
    try:
        template = read_template(Path(weights_of(model.path)))
    except Problems:  # no checkpoint verifies; said elsewhere
        return None
    return _ENDS if template == "" else None
