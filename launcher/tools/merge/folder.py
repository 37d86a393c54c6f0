"""A model's folder in Hugging Face's layout, inspected without loading it: its config, tensors and tokenizer.

Only safetensors count as weights: a pickle can run code, and is never opened.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.core import checkpoints
from launcher.core.bounded_parse import parse_json
from launcher.core.files import expand_user
from launcher.core.problems import Problem, Problems, error_message, short_repr
from launcher.models import weights
from launcher.models.pretrained import weights_of
from launcher.tools.merge.tensors import StoredTensor, read_header

CONFIG, ADAPTER_CONFIG = "config.json", "adapter_config.json"
TOKENIZER = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "merges.txt", "spiece.model")
"""Files that say which token a number is."""
ONE_KIND = "use models of one kind"


@dataclass(frozen=True)
class ModelFolder:
    """A model on disk. `given` is what a person called it."""

    given: str
    path: Path
    config: dict[str, Any] = field(repr=False)
    tensors: dict[str, StoredTensor] = field(repr=False)
    """By name, in the order in which they are stored."""

    @property
    def is_adapter(self) -> bool:
        return (self.path / ADAPTER_CONFIG).is_file()

    @property
    def files(self) -> dict[Path, list[StoredTensor]]:
        """The tensors of each file, in its order."""
        found: dict[Path, list[StoredTensor]] = {}
        for tensor in self.tensors.values():
            found.setdefault(tensor.file, []).append(tensor)
        return found


def open_model(given: str) -> ModelFolder:
    """The model in a folder, in a checkpoint, or in the newest checkpoint of a run that verifies. Raises `Problems`."""
    path = _located(given)
    config = _json(path / (ADAPTER_CONFIG if (path / ADAPTER_CONFIG).is_file() else CONFIG), given)
    if faults := weights.folder_faults(path):
        raise Problems(faults)
    tensors: dict[str, StoredTensor] = {}
    problems = []
    adapter = (path / ADAPTER_CONFIG).is_file() and (path / weights.ADAPTER).is_file()
    names = [weights.ADAPTER] if adapter else weights.read_by_a_loader(path)
    if names == [weights.ADAPTER] and not adapter:
        got = f"has the weights of an adapter and no {ADAPTER_CONFIG}"
        raise Problems(Problem(given, got, "use the folder as it was saved", "not-found"))
    for name in names:
        try:
            for tensor in read_header(path / name):
                if tensor.name in tensors:
                    got = f"{short_repr(tensor.name)} is in two files"
                    problems.append(Problem(given, got, "keep it in one", "bad-file"))
                tensors[tensor.name] = tensor
        except Problems as found:
            problems += found.problems
    if not problems and names not in ([weights.ADAPTER], [weights.SINGLE]):
        problems = _index_problems(path, given, tensors)
    if problems:
        raise Problems(problems)
    return ModelFolder(given, path, config, tensors)


def _located(given: str) -> Path:
    path = expand_user(given)
    if not path.is_dir():
        raise Problems(Problem(given, "no such folder", "use a model's, a checkpoint's or a run's", code="not-found"))
    if (path / checkpoints.MANIFEST).is_file():
        if faults := checkpoints.faults(path.resolve()):
            raise Problems([Problem(given, "does not verify", "use another checkpoint", code="bad-file"), *faults])
        path = path / "policy"
    return Path(weights_of(str(path))).resolve()


def _json(path: Path, given: str) -> dict[str, Any]:
    try:
        node = parse_json(path.read_bytes())
        if not isinstance(node, dict):
            raise ValueError("it is not a JSON object")
    except FileNotFoundError:
        raise Problems(Problem(given, f"has no {path.name}", "use a model's folder", code="not-found")) from None
    except (OSError, ValueError) as error:
        raise Problems(_unreadable(f"{given}/{path.name}", error)) from error
    return node


def _unreadable(where: str, error: Exception) -> Problem:
    return Problem(where, f"cannot be read, {error_message(error)}", "use the file as it was saved", "bad-file")


def _index_problems(path: Path, given: str, tensors: dict[str, StoredTensor]) -> list[Problem]:
    """Where the index names other files for tensors than those that have them."""
    named = _json(path / weights.INDEX, given)["weight_map"]
    wrong = [name for name, file in named.items() if name not in tensors or tensors[name].file.name != file]
    wrong += [name for name in tensors if name not in named]
    where = f"{given}/{weights.INDEX}"
    return [Problem(where, f"{few(wrong)} not where it says", "use the index of these files")] if wrong else []


def few(names: Iterable[str], most: int = 3) -> str:
    """The first names, and how many there are more."""
    every = list(names)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(short_repr(name) for name in every[:most]) + more


# ---- what has to be equal

MEANING = (
    "model_type", "architectures", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act", "tie_word_embeddings",
    "quantization_config",
)  # fmt: skip
"""Settings without which weights mean something else."""
NEIGHBOURS = ("rope_theta", "rope_scaling", "rope_parameters", "rms_norm_eps", "sliding_window", "eos_token_id")
"""Settings that may differ, which a person should know."""


def find_differences(one: ModelFolder, other: ModelFolder) -> tuple[list[Problem], list[Problem]]:
    """Why `other` is not the same kind of model as `one`: what is wrong, and what is worth knowing."""
    wrong, notes = [], []
    for key in (*MEANING, *NEIGHBOURS):
        ours, theirs = short_repr(one.config.get(key)), short_repr(other.config.get(key))
        if one.config.get(key) == other.config.get(key):
            continue
        if key in MEANING:
            wrong.append(Problem(other.given, f"{key} is {theirs} where {one.given} has {ours}", ONE_KIND))
        else:
            notes.append(Problem(other.given, f"{key} is {theirs}", f"the result has {one.given}'s, {ours}"))
    both = [(tensor, other.tensors[name]) for name, tensor in one.tensors.items() if name in other.tensors]
    if missing := [name for name in one.tensors if name not in other.tensors]:
        wrong.append(Problem(other.given, f"lacks {few(missing)}, which {one.given} has", ONE_KIND))
    if extra := [name for name in other.tensors if name not in one.tensors]:
        wrong.append(Problem(other.given, f"has {few(extra)}, which {one.given} lacks", ONE_KIND))
    if shapes := [f"{a.name} {list(b.shape)} for {list(a.shape)}" for a, b in both if a.shape != b.shape]:
        wrong.append(Problem(other.given, f"other shapes than {one.given}'s: {few(shapes)}", ONE_KIND))
    if not _same_tokens(one.path, other.path):
        wrong.append(Problem(other.given, f"its tokenizer knows other tokens than {one.given}'s", ONE_KIND))
    return wrong, notes


def _same_tokens(one: Path, other: Path) -> bool:
    """Where both have a tokenizer, whether a number is the same token in both."""
    both = (name for name in TOKENIZER if (one / name).is_file() and (other / name).is_file())
    name = next(both, None)
    return name is None or _tokens(one / name) == _tokens(other / name)


def _tokens(path: Path) -> str:
    """Digest of the tokens; how text is truncated and padded does not count."""
    text = path.read_bytes()
    if path.suffix == ".json":
        try:
            node = parse_json(text)
            known = {key: node[key] for key in ("model", "added_tokens", "normalizer", "pre_tokenizer") if key in node}
            text = json.dumps(known or node, sort_keys=True).encode()
        except (ValueError, TypeError, AttributeError) as error:
            raise Problems(_unreadable(str(path), error)) from error
    return hashlib.sha256(text).hexdigest()
