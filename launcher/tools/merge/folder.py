"""A model's folder in Hugging Face's layout: inspected without loading it (config, tensors, tokenizer), and written.

Only safetensors count as weights: a pickle can run code, and is never opened.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from launcher.core import checkpoints
from launcher.core.files import expand_user, fsync_path
from launcher.core.problems import Problem, Problems, short_repr
from launcher.core.redaction import redact
from launcher.models import config, texts, weights
from launcher.models.pretrained import weights_of
from launcher.spec.checkpoint_format import POLICY

CONFIG, ADAPTER_CONFIG = "config.json", "adapter_config.json"
TOKENIZER = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "merges.txt", "spiece.model")
"""Files that say which token a number is."""
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
"""The number formats by safetensors' names."""
ROOM = 1 << 20  # bytes beyond the files' own that a folder takes


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a safetensors file: its name, number format (safetensors' name) and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path

    @property
    def is_float(self) -> bool:
        return DTYPES[self.dtype].is_floating_point

    def load(self) -> Tensor:
        with safe_open(self.file, framework="pt") as opened:
            return opened.get_tensor(self.name)


@dataclass(frozen=True)
class ModelFolder:
    """A model on disk. `given` is the name that the user gave."""

    given: str
    path: Path
    config: dict[str, Any] = field(repr=False)
    tensors: dict[str, StoredTensor] = field(repr=False)
    """The tensors by name, in the order of the files and of the names in them."""

    @property
    def is_adapter(self) -> bool:
        return (self.path / ADAPTER_CONFIG).is_file()

    def digests(self) -> dict[str, str]:
        """sha256 of each file of weights, by its name."""
        files = dict.fromkeys(tensor.file for tensor in self.tensors.values())
        return {file.name: checkpoints.sha256(file) for file in files}


def open_model(given: str) -> ModelFolder:
    """The model in a folder, in a checkpoint, or in the newest checkpoint of a run that verifies. Raises `Problems`."""
    path = _locate(given)
    is_adapter = (path / ADAPTER_CONFIG).is_file()
    name = ADAPTER_CONFIG if is_adapter else CONFIG
    if not (path / name).is_file():
        raise Problems(Problem(given, f"has no {name}", "use a model's folder", code="not-found"))
    files = [weights.ADAPTER] if is_adapter and (path / weights.ADAPTER).is_file() else weights.read_by_a_loader(path)
    if faults := config.faults(path) or weights.folder_faults(path) or weights.cut_faults(path, files):
        raise Problems(faults)
    tensors = {
        name: StoredTensor(name, dtype, shape, path / file)
        for file in files
        for name, (dtype, shape) in weights.tensors(path, [file]).items()
    }
    if unknown := [tensor for tensor in tensors.values() if tensor.dtype not in DTYPES]:
        got = f"{short_repr(unknown[0].name)} is {unknown[0].dtype}"
        raise Problems(Problem(str(unknown[0].file), got, f"expected one of {', '.join(DTYPES)}"))
    return ModelFolder(given, path, config.read(path, name) or {}, tensors)


def _locate(given: str) -> Path:
    path = expand_user(given)
    if not path.is_dir():
        raise Problems(Problem(given, "no such folder", "use a model's, a checkpoint's or a run's", code="not-found"))
    if (path / checkpoints.MANIFEST).is_file():
        if faults := checkpoints.faults(path.resolve()):
            raise Problems([Problem(given, "does not verify", "use another checkpoint", code="bad-file"), *faults])
        path = path / POLICY
    return Path(weights_of(str(path))).resolve()


def list_few(names: Iterable[str], most: int = 3) -> str:
    """The first names, and how many more there are."""
    all_names = list(names)
    rest = f" and {len(all_names) - most} more" if len(all_names) > most else ""
    return ", ".join(short_repr(name) for name in all_names[:most]) + rest


# ---- what has to be equal

MEANING = (
    "model_type", "architectures", "vocab_size", "num_attention_heads", "num_key_value_heads", "hidden_act",
    "tie_word_embeddings", "quantization_config",
)  # fmt: skip
"""Settings without which tensors of equal shapes mean something else."""


def find_differences(first: ModelFolder, other: ModelFolder) -> list[Problem]:
    """How `other` differs from `first`, so that they cannot be mixed."""
    settings = [(key, first.config.get(key), other.config.get(key)) for key in MEANING]
    faults = [
        f"{key} is {short_repr(right)} where {first.given} has {short_repr(left)}"
        for key, left, right in settings if left != right
    ]  # fmt: skip
    faults += _tensor_differences(first, other)
    shared = next((name for name in TOKENIZER if all((one.path / name).is_file() for one in (first, other))), None)
    if shared and _read_tokens(first.path / shared) != _read_tokens(other.path / shared):
        faults.append(f"its tokenizer knows other tokens than {first.given}'s")
    return [Problem(other.given, fault, "use models of one kind") for fault in faults]


def _tensor_differences(first: ModelFolder, other: ModelFolder) -> list[str]:
    faults = []
    if missing := [name for name in first.tensors if name not in other.tensors]:
        faults.append(f"lacks {list_few(missing)}, which {first.given} has")
    if extra := [name for name in other.tensors if name not in first.tensors]:
        faults.append(f"has {list_few(extra)}, which {first.given} lacks")
    pairs = [(tensor, other.tensors[name]) for name, tensor in first.tensors.items() if name in other.tensors]
    if shapes := [f"{a.name} {list(b.shape)} for {list(a.shape)}" for a, b in pairs if a.shape != b.shape]:
        faults.append(f"other shapes than {first.given}'s: {list_few(shapes)}")
    if formats := [f"{a.name} {b.dtype} for {a.dtype}" for a, b in pairs if a.is_float != b.is_float]:
        faults.append(f"other formats than {first.given}'s: {list_few(formats)}")
    return faults


def _read_tokens(path: Path) -> object:
    """The tokens that a file of a tokenizer names; how text is truncated and padded does not count."""
    node = config.read(path.parent, path.name) if path.suffix == ".json" else None
    parts = {key: (node or {}).get(key) for key in ("model", "added_tokens", "normalizer", "pre_tokenizer")}
    return parts if any(parts.values()) else path.read_bytes()


# ---- a new folder: whole, or not at all


def out_problems(out: Path, inputs: Sequence[Path], needed: int) -> list[Problem]:
    """Why a folder of `needed` bytes cannot be made at `out`: it overlaps an input, exists, or lacks disk space."""
    final = expand_user(out).resolve()
    for path in inputs:
        source = path.resolve()
        if final == source or source in final.parents or final in source.parents:
            return [Problem("--out", f"{out} overlaps with {path}", "use another folder")]
    if final.exists() and not (final.is_dir() and not any(final.iterdir())):
        return [Problem("--out", f"{out} is there already", "use a new folder")]
    existing = next(path for path in final.parents if path.exists())
    free, needed = shutil.disk_usage(existing).free, needed + ROOM
    if needed > free:
        got = f"{existing} has {free / 1e6:,.1f} MB free, and {needed / 1e6:,.1f} MB are needed"
        return [Problem("--out", got, "free some space or use another disk", "not-enough")]
    return []


@contextmanager
def draft_folder(out: Path) -> Iterator[Path]:
    """A folder to fill, which is renamed to `out` at the end. After an error nothing of it remains; what a kill leaves
    has another name (`.OUT.unfinished-...`)."""
    final = expand_user(out).resolve()
    final.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{final.name}.unfinished-", dir=final.parent) as temporary:
        draft = Path(temporary) / final.name
        draft.mkdir(mode=0o700)
        yield draft
        for path in [*sorted(draft.rglob("*"), reverse=True), draft]:
            fsync_path(path)
        draft.rename(final)
    fsync_path(final.parent)


def copy_neighbours(source: Path, folder: Path, *, only_tokenizer: bool = False) -> None:
    """Copy a model's tokenizer, templates, code and licence; no config, no weights and no index of them."""
    texts.write(folder, texts.read_texts(source, only_tokenizer=only_tokenizer))


def write_json(path: Path, node: Mapping[str, Any]) -> None:
    path.write_text(redact(json.dumps(node, indent=2, ensure_ascii=False)) + "\n", encoding="utf-8")
