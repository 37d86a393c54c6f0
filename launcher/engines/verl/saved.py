"""verl's checkpoints: what it saves in RUN/verl/saved becomes a checkpoint of the run, with a manifest.

    verl/saved/global_step_20/        as verl writes it, file by file
        actor/{model,optim,extra_state}_world_size_W_rank_R.pt  fsdp_config.json  huggingface/   (SFT: without actor/)
        critic/...  data.pt
    verl/saved/latest_checkpointed_iteration.txt   its last complete one, written last; a crash may leave it empty
    checkpoints/step_000020/state/global_step_20/  the same files; trainer.json, manifest.json

Files are linked, not copied, and removed from verl's folder once the checkpoint is complete, so a kill at any moment
leaves all of them in one of the two places.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from launcher.core import checkpoints
from launcher.core.events import writable
from launcher.core.files import read_file
from launcher.core.problems import Problem, Problems, error_message
from launcher.engines.verl.words import SAVED, STATE, WORK

TRACKER = "latest_checkpointed_iteration.txt"
_FOLDER = re.compile(r"global_step_([0-9]{1,12})")
_SHARD = re.compile(r"(model|optim|extra_state)_world_size_([0-9]{1,6})_rank_([0-9]{1,6})\.pt")


def is_checkpoint_name(path: str) -> bool:
    return _FOLDER.fullmatch(Path(path).name) is not None


def folders(root: Path) -> list[tuple[int, Path]]:
    """The steps and folders of verl's checkpoints in `root`, newest first; nothing is verified."""
    steps = [(int(match[1]), path) for path in (root.iterdir() if root.is_dir() else ()) if path.is_dir()
             and (match := _FOLDER.fullmatch(path.name))]  # fmt: skip
    return sorted(steps, reverse=True)


def tracked(root: Path) -> int | None:
    """The step that verl's tracker file names; None where it is missing, empty or damaged."""
    try:
        text = read_file(root / TRACKER, most=64).decode().strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdigit() else None


def is_complete(folder: Path) -> bool:
    """Whether a checkpoint of verl was saved to its end: the state of the data loader, which is written last, the
    shards of all ranks, and no truncated file. verl writes no hashes, so a byte that changed within a tensor is not
    found."""
    roles = [folder / name for name in ("actor", "critic") if (folder / name).is_dir()] or [folder]
    has_rows = any(folder.glob("data*.pt"))
    return has_rows and all(map(_has_all_shards, roles)) and all(map(zipfile.is_zipfile, folder.rglob("*.pt")))


def _has_all_shards(role: Path) -> bool:
    shards = {match[0]: match for path in role.iterdir() if (match := _SHARD.fullmatch(path.name))}
    if not shards:
        return (role / "dist_ckpt").is_dir() or (role / "huggingface").is_dir()  # Megatron's weights
    kinds = {(match[1], match[2]) for match in shards.values()}
    return all(f"{kind}_world_size_{n}_rank_{rank}.pt" in shards for kind, n in kinds for rank in range(int(n)))


def take_over(folder: Path, step: int, validated: Mapping[str, float] | None = None) -> bool:
    """Turn verl's checkpoint of a step in the run's folder into one of the run; False where it is not complete, and
    stays where it is. `validated` has the metrics of the validation that followed. Raises `OSError`."""
    source = folder / WORK / SAVED / f"global_step_{step}"
    if not is_complete(source):
        return False
    metrics = {"step": step, "metrics": dict(validated)} if validated else {"step": None, "metrics": {}}
    text = json.dumps(writable({"engine": "verl", "step": step, "validated": metrics}), indent=1)

    def fill(draft: Path) -> None:
        shutil.copytree(source, draft / STATE / source.name, copy_function=_link_or_copy)
        (draft / "trainer.json").write_text(text + "\n")

    checkpoints.write(folder / "checkpoints", step, fill)
    shutil.rmtree(source)
    return True


def _link_or_copy(source: str, target: str) -> str:
    """Hard-link a file; copy it where the file system has no links."""
    with suppress(OSError):
        os.link(source, target)
        return target
    return str(shutil.copy2(source, target))


def without_rows(source: str, root: Path) -> Path:
    """A copy of the checkpoint in `root`, without the state of the data loader. Raises `OSError`."""
    shutil.rmtree(root, ignore_errors=True)
    target = root / Path(source).name
    shutil.copytree(source, target, copy_function=_link_or_copy, ignore=shutil.ignore_patterns("data*.pt"))
    return target


def merge(python: str, checkpoint: Path, target: Path) -> None:
    """Write the weights of a checkpoint (a run's, or verl's own folder) to `target` in Hugging Face's layout, with
    verl's own merger, in the environment of `python`. Raises `Problems`."""
    stored = folders(checkpoint / STATE)
    source = stored[0][1] if stored else checkpoint
    role = source / "actor" if (source / "actor").is_dir() else source
    backend = "megatron" if (role / "dist_ckpt").is_dir() else "fsdp"
    command = [python, "-m", "verl.model_merger", "merge", "--backend", backend, "--local_dir", str(role),
               "--target_dir", str(target)]  # fmt: skip
    try:
        completed = subprocess.run(command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    except OSError as error:
        got = f"{python} cannot be started: {error_message(error)}"
        raise Problems(Problem("engine.python", got, "use the Python of verl's environment", "not-found")) from error
    if completed.returncode or not (target / "config.json").is_file():
        printed = [line for line in completed.stderr.splitlines() if line.strip()] or ["it printed nothing"]
        got = f"verl's merger ended with exit code {completed.returncode}: {printed[-1].strip()}"
        raise Problems(Problem(str(role), got, f"run {shlex.join(command)} to see more", "bad-file"))
