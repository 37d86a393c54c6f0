"""The small files that come with a model, which are saved again unchanged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from launcher.core.bounded_parse import parse_json
from launcher.models import config
from launcher.models.weights import INDEX

CONFIG, GENERATION, TOKENIZER = "config.json", "generation_config.json", "tokenizer.json"
_KEPT_ENDINGS = (".json", ".jinja", ".txt", ".model", ".tiktoken", ".py")
"""Endings of files that belong to a model beside its weights."""
_LICENCE_FILES = ("LICENSE", "NOTICE")
_EXCLUDED = (CONFIG, INDEX, "trainer_state.json", "training_args.json")
_TOKENIZER = ("tokenizer", "vocab", "merges", "special_tokens", "added_tokens", "chat_template", "generation_config")
_TOKENIZER_ENDINGS = (".jinja", ".tiktoken", ".model")


def read_texts(folder: Path, *, only_tokenizer: bool = False) -> dict[str, bytes]:
    """The small files of a model's folder by name: tokenizer, templates, generation settings, and unless
    `only_tokenizer`, code and licence; not its config.json."""
    texts = dict[str, bytes]()
    for path in [*folder.iterdir(), *(folder / "additional_chat_templates").glob("*.jinja")]:
        is_kept = path.suffix in _KEPT_ENDINGS or path.name.startswith(_LICENCE_FILES)
        if not path.is_file() or path.name in _EXCLUDED or path.name.startswith(".") or not is_kept:
            continue
        if not only_tokenizer or path.name.startswith(_TOKENIZER) or path.suffix in _TOKENIZER_ENDINGS:
            texts[path.relative_to(folder).as_posix()] = path.read_bytes()
    return texts


def write(folder: Path, texts: Mapping[str, bytes]) -> None:
    for name, text in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(text)


def read_saved(folder: Path, base: Path | None) -> dict[str, bytes]:
    """The small files to save with a model that was loaded from `folder`, and for adapters from `base`, the folder of
    their base model; no tokenizer files where the tokenizer was not made from tokenizer.json."""
    texts = dict[str, bytes]()
    for source in (base, folder):
        if source and source.is_dir():
            texts |= read_texts(source, only_tokenizer=True)
            texts |= {CONFIG: (source / CONFIG).read_bytes()} if (source / CONFIG).is_file() else {}
    return texts if TOKENIZER in texts else {name: texts[name] for name in (CONFIG, GENERATION) if name in texts}


def write_saved(folder: Path, published: Mapping[str, bytes]) -> None:
    """Overwrite what transformers wrote into `folder` with the files published with the model. Only real changes are
    kept: the weights' number format, the model's class, and further tokens that end an answer."""
    texts = dict(published)
    for name in {CONFIG, GENERATION} & texts.keys():
        original, written = parse_json(published[name]), config.read(folder, name) or {}
        if name == GENERATION:
            ends = [node.get("eos_token_id") for node in (original, written)]
            old, new = ([ids] if isinstance(ids, int) else ids or [] for ids in ends)
            further = {"eos_token_id": list(dict.fromkeys([*old, *new]))} if {*new} - {*old} else {}
            merged = original | further
        elif written.get("model_type") == original.get("model_type"):
            dtype_key = "torch_dtype" if "torch_dtype" in original else "dtype"
            merged = original | {dtype_key: written.get("dtype"), "architectures": written.get("architectures")}
        else:
            del texts[name]  # adapters have no config.json; a part of a composite model has another type
            continue
        if merged != original:
            texts[name] = json.dumps(merged, indent=2, ensure_ascii=False).encode() + b"\n"
    write(folder, texts)
