"""A model's folder in Hugging Face's layout, looked at without loading it: its config, its tensors, its words.

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
from launcher.models.pretrained import weights_of
from launcher.tools.merge.tensors import StoredTensor, read_header

CONFIG, ADAPTER_CONFIG = "config.json", "adapter_config.json"
WEIGHTS, INDEX, ADAPTER = "model.safetensors", "model.safetensors.index.json", "adapter_model.safetensors"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
WORDS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "merges.txt", "spiece.model")
"""Files that say which token a number is."""


@dataclass(frozen=True)
class ModelFolder:
    """A model as it lies on disk. `given` is what a person called it."""

    given: str
    path: Path
    config: dict[str, Any] = field(repr=False)
    tensors: dict[str, StoredTensor] = field(repr=False)
    """By name, in the order in which they lie."""

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
    path = _found(given)
    config = _json(path / (ADAPTER_CONFIG if (path / ADAPTER_CONFIG).is_file() else CONFIG), given)
    tensors: dict[str, StoredTensor] = {}
    problems = []
    for file in _weight_files(path, given):
        try:
            for tensor in read_header(file):
                if tensor.name in tensors:
                    problems.append(
                        Problem(
                            given, f"{short_repr(tensor.name)} stands in two files", "keep it in one", code="bad-file"
                        )
                    )
                tensors[tensor.name] = tensor
        except Problems as found:
            problems += found.problems
    if not problems:
        problems = _index_problems(path, given, tensors)
    if problems:
        raise Problems(problems)
    return ModelFolder(given, path, config, tensors)


def _found(given: str) -> Path:
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
    except FileNotFoundError:
        raise Problems(Problem(given, f"holds no {path.name}", "use a model's folder", code="not-found")) from None
    except (OSError, ValueError) as error:
        raise Problems(
            Problem(
                f"{given}/{path.name}",
                f"cannot be read, {error_message(error)}",
                "use the file as it was saved",
                code="bad-file",
            )
        ) from error
    if not isinstance(node, dict):
        raise Problems(
            Problem(f"{given}/{path.name}", "is no JSON object", "use the file as it was saved", code="bad-file")
        )
    return node


def _weight_files(path: Path, given: str) -> list[Path]:
    if (path / ADAPTER_CONFIG).is_file() and (path / ADAPTER).is_file():
        return [path / ADAPTER]
    if (path / WEIGHTS).is_file():
        return [path / WEIGHTS]
    if (path / INDEX).is_file():
        names = sorted(set(_weight_map(path, given).values()))
        if lost := [name for name in names if not (path / name).is_file()]:
            raise Problems(
                [Problem(f"{given}/{name}", f"is missing, and {INDEX} names it", code="not-found") for name in lost]
            )
        return [path / name for name in names]
    pickles = sorted(file.name for file in path.iterdir() if file.suffix in PICKLES)
    if pickles:
        raise Problems(
            Problem(
                given,
                f"its weights are pickles ({few(pickles)}), which can run code",
                "use safetensors",
                code="bad-file",
            )
        )
    raise Problems(Problem(given, f"holds no {WEIGHTS} and no {INDEX}", "use a model's folder", code="not-found"))


def _weight_map(path: Path, given: str) -> dict[str, str]:
    """The file of each tensor. A name that leads out of the folder is refused."""
    node = _json(path / INDEX, given).get("weight_map")
    if not isinstance(node, dict) or not all(isinstance(name, str) for name in node.values()):
        raise Problems(
            Problem(f"{given}/{INDEX}", "weight_map is missing", "expected a file for each tensor", code="not-found")
        )
    bad = sorted({name for name in node.values() if not _plain(name)})
    if bad:
        raise Problems(
            [
                Problem(
                    f"{given}/{INDEX}",
                    f"names the file {short_repr(name)}",
                    "use a .safetensors in the same folder",
                    code="bad-file",
                )
                for name in bad
            ]
        )
    return node


def _plain(name: str) -> bool:
    return name.endswith(".safetensors") and "\0" not in name and "\\" not in name and Path(name).name == name


def _index_problems(path: Path, given: str, tensors: dict[str, StoredTensor]) -> list[Problem]:
    """Where the index and the files tell different stories."""
    if (path / ADAPTER).is_file() or (path / WEIGHTS).is_file():
        return []
    named = _weight_map(path, given)
    wrong = [name for name, file in named.items() if name not in tensors or tensors[name].file.name != file]
    wrong += [name for name in tensors if name not in named]
    if not wrong:
        return []
    return [Problem(f"{given}/{INDEX}", f"{few(wrong)} not where it says", "use the index of these files")]


def few(names: Iterable[str], most: int = 3) -> str:
    """The first names, and how many there are more."""
    every = list(names)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(short_repr(name) for name in every[:most]) + more


# ---- what must be alike

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
    wrong = [
        Problem(
            other.given,
            f"{key} is {short_repr(other.config.get(key))} where {one.given} has {short_repr(one.config.get(key))}",
            "use models of one kind",
        )
        for key in MEANING
        if other.config.get(key) != one.config.get(key)
    ]
    wrong += _unlike_tensors(one, other)
    if not _same_words(one.path, other.path):
        wrong.append(
            Problem(other.given, f"its tokenizer knows other tokens than {one.given}'s", "use models of one kind")
        )
    notes = [
        Problem(
            other.given,
            f"{key} is {short_repr(other.config.get(key))}",
            f"the result has {one.given}'s, {short_repr(one.config.get(key))}",
        )
        for key in NEIGHBOURS
        if other.config.get(key) != one.config.get(key)
    ]
    return wrong, notes


def _unlike_tensors(one: ModelFolder, other: ModelFolder) -> list[Problem]:
    found = []
    if missing := [name for name in one.tensors if name not in other.tensors]:
        found.append(Problem(other.given, f"lacks {few(missing)}, which {one.given} has", "use models of one kind"))
    if extra := [name for name in other.tensors if name not in one.tensors]:
        found.append(Problem(other.given, f"has {few(extra)}, which {one.given} lacks", "use models of one kind"))
    both = [(tensor, other.tensors[name]) for name, tensor in one.tensors.items() if name in other.tensors]
    if shapes := [f"{a.name} {list(b.shape)} for {list(a.shape)}" for a, b in both if a.shape != b.shape]:
        found.append(Problem(other.given, f"other shapes than {one.given}'s: {few(shapes)}", "use models of one kind"))
    return found


def _same_words(one: Path, other: Path) -> bool:
    """Where both have a tokenizer, whether a number is the same token in both."""
    for name in WORDS:
        if (one / name).is_file() and (other / name).is_file():
            return _words(one / name) == _words(other / name)
    return True


def _words(path: Path) -> str:
    """Digest of what the tokens are; how text is cut to length and padded does not count."""
    text = path.read_bytes()
    if path.suffix == ".json":
        try:
            node = parse_json(text)
            known = {key: node[key] for key in ("model", "added_tokens", "normalizer", "pre_tokenizer") if key in node}
            text = json.dumps(known or node, sort_keys=True).encode()
        except (ValueError, TypeError, AttributeError) as error:
            raise Problems(
                Problem(
                    str(path),
                    f"cannot be read, {error_message(error)}",
                    "use the file as it was saved",
                    code="bad-file",
                )
            ) from error
    return hashlib.sha256(text).hexdigest()
