"""Writes a model's folder: whole and checked, or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from huggingface_hub import StateDictSplit, split_state_dict_into_shards_factory
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from launcher.core.files import expand_user, fsync_path
from launcher.core.problems import Problem, Problems
from launcher.core.redaction import redact
from launcher.models import texts
from launcher.models.weights import INDEX

ROOM = 1 << 20  # bytes beyond the files' own that a folder takes


def out_problems(out: Path, inputs: Sequence[Path], needed: int) -> list[Problem]:
    """Why a folder of so many bytes cannot be made at `out`."""
    final = expand_user(out).resolve()
    for path in inputs:
        source = path.resolve()
        if final == source or source in final.parents or final in source.parents:
            how = "is one with" if final == source else "is within" if source in final.parents else "holds"
            return [Problem("--out", f"{out} {how} {path}", "use another folder")]
    if final.exists() and not (final.is_dir() and not any(final.iterdir())):
        return [Problem("--out", f"{out} is there already", "use a new folder")]
    place = next(path for path in final.parents if path.exists())
    free, needed = shutil.disk_usage(place).free, needed + ROOM
    if needed > free:
        got = f"{place} has {free / 1e6:,.1f} MB free, and {needed / 1e6:,.1f} MB are needed"
        return [Problem("--out", got, "free some space or use another disk", "not-enough")]
    return []


@contextmanager
def draft_folder(out: Path) -> Iterator[Path]:
    """A folder to fill, which is renamed to `out` at the end. After an error nothing of it remains; what a kill leaves
    has another name (`.OUT.unfinished-...`)."""
    final = expand_user(out).resolve()
    final.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{final.name}.unfinished-", dir=final.parent) as beside:
        draft = Path(beside) / final.name
        draft.mkdir(mode=0o700)
        yield draft
        for path in [*sorted(draft.rglob("*"), reverse=True), draft]:
            fsync_path(path)
        draft.rename(final)
    fsync_path(final.parent)


def split_into_files(sizes: Mapping[str, int], shard_bytes: int) -> StateDictSplit:
    """Which tensors, by their sizes in bytes, come into which file."""
    return split_state_dict_into_shards_factory(
        dict(sizes), get_storage_size=int, filename_pattern="model{suffix}.safetensors", max_shard_size=shard_bytes
    )


def write_weights(
    folder: Path, sizes: Mapping[str, int], compute: Callable[[str], Tensor], shard_bytes: int
) -> Iterator[int]:
    """Write the tensors of these sizes in files of at most `shard_bytes`, a larger one in a file of its own, and say
    after each file how many bytes there are. The tensors of one file are in memory at a time. Raises `Problems` where
    one reads back otherwise."""
    split, done = split_into_files(sizes, shard_bytes), 0
    for file, names in split.filename_to_tensors.items():
        path = folder / file
        tensors = {name: compute(name).contiguous() for name in names}
        save_file(tensors, path, metadata={"format": "pt"})  # transformers refuses a file that does not say so
        with safe_open(path, framework="pt") as read_back:  # one tensor at a time
            changed = any(not tensor.equal(read_back.get_tensor(name)) for name, tensor in tensors.items())
        if changed:
            got = "reads back otherwise than it was written"
            raise Problems(Problem(path.name, got, "use another disk", "changed"))
        done += sum(sizes[name] for name in names)
        yield done
    if split.is_sharded:
        weight_map = dict(sorted(split.tensor_to_filename.items()))
        write_json(folder / INDEX, {"metadata": split.metadata, "weight_map": weight_map})


def copy_neighbours(source: Path, folder: Path, *, only_tokenizer: bool = False) -> None:
    """Copy a model's tokenizer, templates, code and licence; no config, no weights and no index of them."""
    texts.write(folder, texts.read_texts(source, only_tokenizer=only_tokenizer))


def write_json(path: Path, node: Mapping[str, Any]) -> None:
    path.write_text(redact(json.dumps(node, indent=2, ensure_ascii=False)) + "\n", encoding="utf-8")
