"""lock.json: what decides a run's result beside its settings, so that it can be made again, and differences told.

{"spec": sha256 of spec.yaml, "code": {"rlrun": {"commit", "diff"}, "folder": {...}}, "python", "system",
 "packages": {name: version}, "installed": [name==version], "hardware": {...}, "data": sha256, "model": {"files": ...},
 "reward": [...], "seed", "words", "environment": {name: value}}

Locks of older versions have fewer keys: what was not written down is taken to be the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from launcher.config.resolve import PACKAGE
from launcher.core import checkpoints, machine
from launcher.core.bounded_parse import parse_json
from launcher.core.files import write_atomic
from launcher.core.problems import Problem, Problems, error_message
from launcher.hubs import manifest
from launcher.models.pretrained import Pretrained
from launcher.rewards.model import RewardModel
from launcher.rewards.python import Python
from launcher.runs.folder import Folder
from launcher.spec.model import Model
from launcher.spec.reward import Reward
from launcher.spec.run import RunSpec

ENVIRONMENT = (
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUBLAS_WORKSPACE_CONFIG",
    "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF",
    "NCCL_ALGO", "NCCL_PROTO", "NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "NCCL_SHM_DISABLE",
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_CBWR", "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA", "PYTHONHASHSEED",
)  # fmt: skip
"""Variables that change numbers or where they are computed. No other is ever written down: one may hold a secret."""

_HOLDS = {"code": dict, "packages": dict, "installed": list, "hardware": dict, "environment": dict}


def path_of(folder: Folder) -> Path:
    return folder.path / "lock.json"


def write(folder: Folder, run: RunSpec, spec: str, typed: str) -> None:
    """Write down what `run`, prepared and written as the text `spec`, will be decided by. Raises `Problems`."""
    write_atomic(path_of(folder), json.dumps(taken(run, spec, typed), indent=1) + "\n")


def amend(folder: Folder, spec: str) -> None:
    """The run goes on with settings that change where and how fast it runs, and `spec` is what it has now."""
    write_atomic(path_of(folder), json.dumps({**read(folder), "spec": _sha256(spec)}, indent=1) + "\n")


def read(folder: Folder) -> dict[str, Any]:
    """What was written down; of an older version, fewer keys. Raises `Problems`."""
    path = path_of(folder)
    try:
        recorded = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise Problems(
            Problem(str(path), f"cannot be read, {error_message(error)}", "start a new run", "bad-file")
        ) from error
    fits = isinstance(recorded, dict) and all(isinstance(recorded.get(key, of()), of) for key, of in _HOLDS.items())
    if not fits or not all(isinstance(line, str) for line in recorded.get("installed", [])):
        raise Problems(Problem(str(path), "holds no lock", "start a new run", "bad-file"))
    return recorded


def taken(run: RunSpec, spec: str, typed: str) -> dict[str, Any]:
    """As things are now. The data is read whole, models are not (`origin` says what is). Raises `Problems`."""
    return {
        "spec": _sha256(spec),
        "code": {
            "rlrun": own_source(),
            "folder": folder_source(Path.cwd(), Path(run.trainer.run_root).expanduser()),
        },
        "python": machine.python_version(),
        "system": machine.system_name(),
        "packages": machine.package_versions(),
        "installed": installed(),
        "hardware": hardware(),
        "data": run.data.fingerprint(),
        "model": model_origin(run.model),
        "reward": reward_origin(run.reward),
        "seed": run.seed,
        "words": typed,
        "environment": {name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
    }


def installed() -> list[str]:
    """Every distribution that can be imported, as `name==version`."""
    found: dict[str, str] = {}
    for each in distributions():
        found.setdefault(re.sub(r"[-_.]+", "-", each.name).lower(), each.version)  # the first is the one imported
    return sorted(f"{name}=={version}" for name, version in found.items())


def hardware() -> dict[str, Any]:
    seen = machine.query_gpus()
    return {
        "processor": _processor(),
        "cores": machine.cpu_count(),
        "memory_bytes": machine.memory_bytes(),
        "gpus": [{"name": gpu.name, "memory_bytes": gpu.memory_bytes} for gpu in seen.found],
        "driver": seen.driver,
        "cuda": seen.cuda,
    }


def _processor() -> str:
    """Its name, which says what instructions sums are made with; empty where the system does not tell."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return ""


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def spec_is_as_written(folder: Folder, recorded: dict[str, Any]) -> bool:
    """Whether spec.yaml is the one that was locked; true of locks that did not say."""
    return recorded.get("spec") in (None, hashlib.sha256(folder.spec.read_bytes()).hexdigest())


# ---- which bytes a model and a reward are

WHOLE_BYTES = 32 * 2**20
"""A larger file of a folder that nobody wrote a manifest for is told by its size and `PIECES` pieces of it."""
PIECE_BYTES, PIECES = 2**20, 8
_DECIDE = (".json", ".safetensors", ".model", ".txt", ".jinja", ".py", ".tiktoken")


def model_origin(model: Model) -> dict[str, str] | None:
    """None where nothing is loaded (the seed says all), or where transformers fetches it by itself."""
    return folder_origin(Path(model.path).expanduser()) if isinstance(model, Pretrained) else None


def reward_origin(reward: Reward) -> list[dict[str, str]] | None:
    """One entry for each model and each Python file that scores; None where rules do."""
    return list(_reward_origins(reward)) or None


def _reward_origins(reward: Reward) -> Iterator[dict[str, str]]:
    for leaf in reward.leaves():
        if isinstance(leaf, RewardModel) and (found := folder_origin(Path(leaf.path).expanduser())):
            yield found
        elif isinstance(leaf, Python):
            yield _file_origin(Path(leaf.path).expanduser())


def same_files(recorded: object, now: object) -> bool:
    """Whether two origins are of equal bytes. What no origin was written down for is taken to be the same."""
    if isinstance(recorded, list) and isinstance(now, list) and len(recorded) == len(now):
        return all(same_files(one, other) for one, other in zip(recorded, now, strict=True))
    if isinstance(recorded, dict) and isinstance(now, dict):
        return recorded.get("files") == now.get("files")
    return recorded is None or recorded == now


def folder_origin(folder: Path) -> dict[str, str] | None:
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
        found = {path.name: _file_digest(path) for path in decide}
    except OSError as error:
        raise Problems(
            Problem(str(folder), f"cannot be read, {error_message(error)}", "use a model's folder", "bad-file")
        ) from error
    some = any("of it" in of for of in found.values())
    how = {"hashed": f"files over {WHOLE_BYTES >> 20} MiB by size and {PIECES} pieces of 1 MiB"} if some else {}
    return {"folder": str(folder), "files": _digest(found), **how}


def _file_digest(path: Path) -> str:
    size = path.stat().st_size
    if size <= WHOLE_BYTES:
        return checkpoints.sha256(path)
    pieces = hashlib.sha256()
    with path.open("rb") as file:
        for number in range(PIECES):
            file.seek((size - PIECE_BYTES) * number // (PIECES - 1))  # the first holds the header, the last the end
            pieces.update(file.read(PIECE_BYTES))
    return f"{size} bytes, pieces of it {pieces.hexdigest()}"


def _file_origin(path: Path) -> dict[str, str]:
    try:
        return {"file": str(path), "files": checkpoints.sha256(path)}
    except OSError as error:
        raise Problems(
            Problem("reward.path", f"{path} cannot be read, {error_message(error)}", "use a Python file", "bad-file")
        ) from error


def _digest(node: object) -> str:
    return hashlib.sha256(json.dumps(node, sort_keys=True).encode()).hexdigest()


# ---- which source code runs

LIMIT_S = 10.0  # for all that git is asked about one folder
READ_BYTES, READ_FILES = 2**20, 2_000  # of files that git does not track; what is beyond counts by name and size
_OWN = ("launcher", "conf")  # what decides a result: a new word in the README does not


def own_source() -> dict[str, str] | None:
    """rlrun's own source tree; None where it was installed and no repository is its home."""
    clone = PACKAGE.parent
    return _version_of(clone, _OWN) if _repository(clone) == clone.resolve() else None


def folder_source(folder: Path, runs: Path) -> dict[str, str] | None:
    """The repository that `folder` lies in, without the runs in it; None where it lies in none, or in rlrun's own."""
    top = _repository(folder)
    if top is None or top == PACKAGE.parent.resolve():
        return None
    inside = runs.resolve().relative_to(top) if runs.resolve().is_relative_to(top) else None
    return _version_of(top, [".", f":(exclude){inside}"] if inside else ["."])


def _repository(folder: Path) -> Path | None:
    output = _git(folder, time.monotonic() + LIMIT_S, "rev-parse", "--show-toplevel")
    return Path(os.fsdecode(output.strip())).resolve() if output else None


def _version_of(top: Path, paths: Sequence[str]) -> dict[str, str]:
    """`commit`, and `diff`: sha256 of all changes since, where there are any."""
    until = time.monotonic() + LIMIT_S
    commit = _git(top, until, "rev-parse", "--verify", "--quiet", "HEAD") or b"none yet"
    diff: bytes | None = b""
    if commit != b"none yet":
        # without the programs that a repository's own settings may name
        diff = _git(top, until, "diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv", "--", *paths)
    others = _git(top, until, "ls-files", "--others", "--exclude-standard", "-z", "--", *paths)
    found = {"commit": commit.decode().strip()}
    if diff is None or others is None:
        return {**found, "diff": f"git did not say within {LIMIT_S:.0f} s"}
    if diff or others:
        found["diff"] = _hash_changes(top, diff, others)
    return found


def _hash_changes(top: Path, diff: bytes, others: bytes) -> str:
    whole = hashlib.sha256(diff)
    for number, name in enumerate(sorted(filter(None, others.split(b"\0")))):
        path = top / os.fsdecode(name)
        whole.update(name + b"\0")
        try:
            size = path.lstat().st_size
            whole.update(b"%d\0" % size)
            if number < READ_FILES and size <= READ_BYTES and path.is_file():
                whole.update(path.read_bytes())
        except OSError:  # gone since it was listed, or not for us to read
            whole.update(b"unread\0")
    return whole.hexdigest()


def _git(folder: Path, until: float, *words: str) -> bytes | None:
    """What git prints; None where it fails, is not there, or takes too long."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    told = {**env, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        ran = subprocess.run(
            ["git", "-c", "core.fsmonitor=false", "-C", str(folder), *words], env=told, capture_output=True,
            stdin=subprocess.DEVNULL, timeout=max(until - time.monotonic(), 0.1), check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return ran.stdout
