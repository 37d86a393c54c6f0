"""lock.json: what decides a run's result besides its settings, so that a rerun can list what has changed.

{"spec": [sha256 of spec.yaml, after each change by a resume, too],
 "code": {"rlrun": {"commit", "diff"}, "folder": {...}}, "python", "system", "installed": [name==version],
 "data": sha256, "model": {"files": ...}, "reward": [...], "seed"}
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from launcher.core import checkpoints, machine
from launcher.core.bounded_parse import parse_json
from launcher.core.files import PACKAGE, open_file, read_file, write_atomic
from launcher.core.problems import Problem, Problems, error_message
from launcher.hubs import manifest
from launcher.launch.code_copy import imported
from launcher.models.pretrained import Pretrained
from launcher.rewards.model import RewardModel
from launcher.rewards.python import Python
from launcher.runs.folder import Folder
from launcher.spec.model import Model
from launcher.spec.reward import Reward
from launcher.spec.run import RunSpec

_SECTIONS = {"spec": list, "code": dict, "installed": list}


def write(folder: Folder, run: RunSpec, spec: str) -> None:
    """Record what decides the result of `run`, prepared and written as the text `spec`. Raises `Problems`."""
    write_atomic(folder.lock, json.dumps(collect(run, spec), indent=1) + "\n")


def amend(folder: Folder, spec: str) -> None:
    """Add the new spec.yaml `spec` of a run that resumes with settings for where and how fast it runs."""
    recorded = read(folder)
    if "spec" in recorded:
        recorded["spec"].append(_sha256(spec))
        write_atomic(folder.lock, json.dumps(recorded, indent=1) + "\n")


def read(folder: Folder) -> dict[str, Any]:
    """The recorded lock, which may lack keys. Raises `Problems` where it cannot be read."""
    path = folder.lock
    try:
        recorded = parse_json(read_file(path))
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    fits = isinstance(recorded, dict) and all(isinstance(recorded.get(key, of()), of) for key, of in _SECTIONS.items())
    if not fits or not all(isinstance(line, str) for line in recorded.get("installed", [])):
        raise Problems(Problem(str(path), "holds no lock", "start a new run", "bad-file"))
    return recorded


def unreadable(path: Path, error: Exception, fix: str = "start a new run") -> Problems:
    """The problem of a run's file that cannot be read."""
    return Problems(Problem(str(path), f"cannot be read, {error_message(error)}", fix, "bad-file"))


def collect(run: RunSpec, spec: str) -> dict[str, Any]:
    """The lock of a run that starts now. The data is read whole, models are not. Raises `Problems`."""
    return {
        "spec": [_sha256(spec)],
        "code": {"rlrun": own_source(), "folder": folder_source(Path.cwd())},
        "python": machine.python_version(),
        "system": machine.system_name(),
        "installed": installed(),
        "data": run.data.fingerprint(),
        "model": model_origin(run.model),
        "reward": reward_origin(run.reward),
        "seed": run.seed,
    }


def installed() -> list[str]:
    """Every distribution that can be imported, as `name==version`."""
    versions: dict[str, str] = {}
    places = [place for place in sys.path if Path(place).name != "thirdparty_files"]  # there once ray is loaded
    for dist in distributions(path=places):
        versions.setdefault(re.sub(r"[-_.]+", "-", dist.name).lower(), dist.version)  # the first is the one imported
    return sorted(f"{name}=={version}" for name, version in versions.items())


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def spec_is_as_written(folder: Folder, recorded: dict[str, Any]) -> bool:
    """Whether spec.yaml is the one that was locked; true for locks that do not record it."""
    return "spec" not in recorded or checkpoints.sha256(folder.spec) in recorded["spec"]


# ---- which bytes a model and a reward are

WHOLE_BYTES = 32 * 2**20
"""A larger file of a folder without a manifest is identified by its size and `PIECES` pieces of it."""
PIECE_BYTES, PIECES = 2**20, 8
_LOADED = (".json", ".safetensors", ".model", ".txt", ".jinja", ".py", ".tiktoken")


def model_origin(model: Model) -> dict[str, str] | None:
    """Where the model's files are from, and their digest; None where none is loaded, or transformers downloads them."""
    return folder_origin(Path(model.path).expanduser()) if isinstance(model, Pretrained) else None


def reward_origin(reward: Reward) -> list[dict[str, str]] | None:
    """One entry for each model and each Python file that scores; None where there is neither."""
    origins = []
    for leaf in reward.leaves():
        if isinstance(leaf, RewardModel):
            origins.append(folder_origin(Path(leaf.path).expanduser()))
        elif isinstance(leaf, Python):
            path = Path(leaf.path).expanduser()
            try:
                imports = {str(file.relative_to(path.parent)): checkpoints.sha256(file)
                           for file in imported(path.parent, [path])[1:]}  # fmt: skip
                origin = {"file": str(leaf.original), "files": checkpoints.sha256(path)}
            except OSError as error:
                raise unreadable(path, error, "use a Python file") from error
            origins.append(origin | ({"imports": _digest(imports)} if imports else {}))
    return [origin for origin in origins if origin] or None


def same_files(recorded: object, now: object) -> bool:
    """Whether two origins have equal bytes, wherever the files are; true where none was recorded."""
    return recorded is None or _digests(recorded) == _digests(now)


def _digests(origin: object) -> object:
    if isinstance(origin, list):
        return [_digests(each) for each in origin]
    return (origin.get("files"), origin.get("imports")) if isinstance(origin, dict) else origin


def folder_origin(folder: Path) -> dict[str, str] | None:
    """`files` is a sha256 over the content; the rest says where it is from. None where there is no such folder.

    A download and a checkpoint have a manifest, so nothing is read. Any other folder is read whole, but of large files
    only `PIECES` MiB each. Raises `Problems` where it cannot be read.
    """
    if downloaded := manifest.read(folder):
        return {"repo": downloaded.repo, "commit": downloaded.commit, "files": _digest(downloaded.files)}
    if files := checkpoints.folder_digests(folder):
        return {"checkpoint": str(folder.parent), "files": _digest(files)}
    if not folder.is_dir():
        return None
    try:
        loaded = sorted(path for path in folder.iterdir() if path.suffix in _LOADED and path.is_file())
        digests = {path.name: _file_digest(path) for path in loaded}
    except OSError as error:
        raise unreadable(folder, error, "use a model's folder") from error
    sampled = any("of it" in digest for digest in digests.values())
    note = {"hashed": f"files over {WHOLE_BYTES >> 20} MiB by size and {PIECES} pieces of 1 MiB"} if sampled else {}
    return {"folder": str(folder), "files": _digest(digests), **note}


def _file_digest(path: Path) -> str:
    size = path.stat().st_size
    if size <= WHOLE_BYTES:
        return checkpoints.sha256(path)
    pieces = hashlib.sha256()
    with open_file(path) as file:
        for number in range(PIECES):
            file.seek((size - PIECE_BYTES) * number // (PIECES - 1))  # the first holds the header, the last the end
            pieces.update(file.read(PIECE_BYTES))
    return f"{size} bytes, pieces of it {pieces.hexdigest()}"


def _digest(node: object) -> str:
    return _sha256(json.dumps(node, sort_keys=True))


# ---- which source code runs

LIMIT_S = 10.0  # for a git command


def own_source() -> dict[str, str] | None:
    """The commit of rlrun's own source tree, and its changes; None where it is installed without a repository."""
    clone = PACKAGE.parent
    return _version_of(clone) if _repository(clone) == clone.resolve() else None


def folder_source(folder: Path) -> dict[str, str] | None:
    """The same of the repository that `folder` is in; None where it is in none, or in rlrun's own."""
    top = _repository(folder)
    return None if top is None or top == PACKAGE.parent.resolve() else _version_of(top)


def _repository(folder: Path) -> Path | None:
    output = _git(folder, "rev-parse", "--show-toplevel")
    return Path(os.fsdecode(output.strip())).resolve() if output else None


def _version_of(top: Path) -> dict[str, str]:
    """`commit`, and `diff`, a sha256 of the changes since to files that git knows, if any; "unknown" if git fails."""
    commit = _git(top, "rev-parse", "--verify", "--quiet", "HEAD")
    if commit is None:
        return {"commit": "unknown"}
    # without the programs that a repository's own settings may name
    diff = _git(top, "diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv")
    digest = "unknown" if diff is None else hashlib.sha256(diff).hexdigest() if diff else ""
    return {"commit": commit.decode().strip(), **({"diff": digest} if digest else {})}


def _git(folder: Path, *arguments: str) -> bytes | None:
    """What git prints; None where it fails, is not installed, or takes longer than LIMIT_S."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env |= {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        completed = subprocess.run(
            ["git", "-c", "core.fsmonitor=false", "-C", str(folder), *arguments], env=env, capture_output=True,
            stdin=subprocess.DEVNULL, timeout=LIMIT_S, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return completed.stdout
