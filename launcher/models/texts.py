"""The small files that came with a model: they are saved again as they came."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.core.bounded_parse import parse_json
from launcher.models import config
from launcher.models.weights import INDEX

CONFIG, GENERATION, TOKENIZER = "config.json", "generation_config.json", "tokenizer.json"
_BESIDE = (".json", ".jinja", ".txt", ".model", ".tiktoken", ".py")
"""Endings of what belongs to a model beside its weights."""
_OWN = ("LICENSE", "NOTICE")
_NOT = (CONFIG, INDEX, "trainer_state.json", "merge.json", "training_args.json")
_TOKENIZER = ("tokenizer", "vocab", "merges", "special_tokens", "added_tokens", "chat_template", "generation_config")
_OF_TOKENIZER = (".jinja", ".tiktoken", ".model")


def read_texts(folder: Path, *, only_tokenizer: bool = False) -> dict[str, bytes]:
    """By name, the texts of a model's folder: tokenizer, templates, generation settings, and unless `only_tokenizer`,
    code and licence; not its config.json."""
    found = dict[str, bytes]()
    for path in [*folder.iterdir(), *(folder / "additional_chat_templates").glob("*.jinja")]:
        belongs = path.suffix in _BESIDE or path.name.startswith(_OWN)
        if not path.is_file() or path.name in _NOT or path.name.startswith(".") or not belongs:
            continue
        if not only_tokenizer or path.name.startswith(_TOKENIZER) or path.suffix in _OF_TOKENIZER:
            found[path.relative_to(folder).as_posix()] = path.read_bytes()
    return found


def write(folder: Path, texts: Mapping[str, bytes]) -> None:
    for name, text in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(text)


def read_saved(folder: Path, base: Path | None) -> dict[str, bytes]:
    """What is saved again of the folder that a model was loaded from, and of the folder `base` of its weights where it
    holds adapters; nothing of its tokenizer where that was made of other files than tokenizer.json."""
    found = dict[str, bytes]()
    for each in (base, folder):
        if each and each.is_dir():
            found |= read_texts(each, only_tokenizer=True)
            found |= {CONFIG: (each / CONFIG).read_bytes()} if (each / CONFIG).is_file() else {}
    return found if TOKENIZER in found else {name: found[name] for name in (CONFIG, GENERATION) if name in found}


def write_saved(folder: Path, published: Mapping[str, bytes]) -> None:
    """Over what transformers wrote into `folder` what came with the model. Only what really is another is changed: the
    number format of the weights, the class of the model, and further tokens that end an answer."""
    texts = dict(published)
    for name in {CONFIG, GENERATION} & texts.keys():
        before, wrote = parse_json(published[name]), config.read(folder, name) or {}
        if name == GENERATION:
            after = before | _more_ends(before, wrote)
        elif wrote.get("model_type") == before.get("model_type"):
            kind = "torch_dtype" if "torch_dtype" in before else "dtype"
            after = before | {kind: wrote.get("dtype"), "architectures": wrote.get("architectures")}
        else:
            del texts[name]  # adapters have none; a part of a composite model is another model
            continue
        if after != before:
            texts[name] = json.dumps(after, indent=2, ensure_ascii=False).encode() + b"\n"
    write(folder, texts)


def _more_ends(before: Mapping[str, Any], wrote: Mapping[str, Any]) -> dict[str, list[int]]:
    """The tokens that end an answer, where `wrote` names further ones."""
    named, all_of = ([ids] if isinstance(ids := of.get("eos_token_id"), int) else ids or [] for of in (before, wrote))
    return {"eos_token_id": list(dict.fromkeys([*named, *all_of]))} if {*all_of} - {*named} else {}
