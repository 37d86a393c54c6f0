"""Which bytes a run's model and reward are, said so that others can be told from them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from launcher.core import checkpoints
from launcher.core.problems import Problems, error_message
from launcher.hubs import manifest
from launcher.models.pretrained import Pretrained
from launcher.rewards.model import RewardModel
from launcher.rewards.python import Python
from launcher.spec.model import Model
from launcher.spec.reward import Reward

WHOLE_BYTES = 32 * 2**20
"""A larger file of a folder that nobody wrote a manifest for is told by its size and `PIECES` pieces of it."""
PIECE_BYTES, PIECES = 2**20, 8
_DECIDE = (".json", ".safetensors", ".model", ".txt", ".jinja", ".py", ".tiktoken")


def of_model(model: Model) -> dict[str, str] | None:
    """None where nothing is loaded (the seed says all), or where transformers fetches it by itself."""
    return of_folder(Path(model.path).expanduser()) if isinstance(model, Pretrained) else None


def of_reward(reward: Reward) -> list[dict[str, str]] | None:
    """One entry for each model and each Python file that scores; None where rules do."""
    return list(_of_leaves(reward)) or None


def _of_leaves(reward: Reward) -> Iterator[dict[str, str]]:
    for leaf in reward.leaves():
        if isinstance(leaf, RewardModel) and (found := of_folder(Path(leaf.path).expanduser())):
            yield found
        elif isinstance(leaf, Python):
            yield _of_file(Path(leaf.path).expanduser())


def same(recorded: object, now: object) -> bool:
    """Whether two origins are of equal bytes. What no origin was written down for is taken to be the same."""
    if isinstance(recorded, list) and isinstance(now, list) and len(recorded) == len(now):
        return all(same(one, other) for one, other in zip(recorded, now, strict=True))
    if isinstance(recorded, dict) and isinstance(now, dict):
        return recorded.get("files") == now.get("files")
    return recorded is None or recorded == now


def of_folder(folder: Path) -> dict[str, str] | None:
    """`files` is a sha256 over the content; the rest says where that is from. None where there is no such folder.

    A download and a checkpoint have their files' sha256 written down, and nothing is read. Of any other folder all is
    read but the insides of large files: at most `PIECES` MiB of each. Raises `Problems` where it cannot be read.
    """
    if downloaded := manifest.read(folder):
        return {"repo": downloaded.repo, "commit": downloaded.commit, "files": _digest(downloaded.files)}
    if files := checkpoints.policy_digests(folder):
        return {"checkpoint": str(folder.parent), "files": _digest(files)}
    if not folder.is_dir():
        return None
    try:
        decide = sorted(path for path in folder.iterdir() if path.suffix in _DECIDE and path.is_file())
        found = {path.name: _told(path) for path in decide}
    except OSError as error:
        raise Problems([f"{folder}: cannot be read, {error_message(error)}; a model's folder would do"]) from error
    some = any("of it" in of for of in found.values())
    how = {"hashed": f"files over {WHOLE_BYTES >> 20} MiB by size and {PIECES} pieces of 1 MiB"} if some else {}
    return {"folder": str(folder), "files": _digest(found), **how}


def _told(path: Path) -> str:
    size = path.stat().st_size
    if size <= WHOLE_BYTES:
        return checkpoints.sha256(path)
    pieces = hashlib.sha256()
    with path.open("rb") as file:
        for number in range(PIECES):
            file.seek((size - PIECE_BYTES) * number // (PIECES - 1))  # the first holds the header, the last the end
            pieces.update(file.read(PIECE_BYTES))
    return f"{size} bytes, pieces of it {pieces.hexdigest()}"


def _of_file(path: Path) -> dict[str, str]:
    try:
        return {"file": str(path), "files": checkpoints.sha256(path)}
    except OSError as error:
        raise Problems(
            [f"reward.path: {path} cannot be read, {error_message(error)}; a Python file would do"]
        ) from error


def _digest(node: object) -> str:
    return hashlib.sha256(json.dumps(node, sort_keys=True).encode()).hexdigest()
