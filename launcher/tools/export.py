"""Export a checkpoint as a Hugging Face folder, written to a draft, read back and renamed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import ValidationError

from launcher.config.explain import explain
from launcher.core.checkpoints import faults, folder_digests, sha256
from launcher.core.problems import Problem, Problems
from launcher.models.weights import tensors
from launcher.runs.folder import Folder
from launcher.runs.kept_checkpoints import Kept
from launcher.spec.checkpoint_format import policy_folder
from launcher.spec.stored import read_run
from launcher.tools.merge.folder import ModelFolder, draft_folder, open_model, out_problems
from launcher.tools.merge.merge import LORA, MergeRequest, MergeResult, OnMergeProgress, merge


@dataclass(frozen=True)
class Exported(MergeResult):
    step: int
    adapter: bool
    """Whether it holds a LoRA adapter and not a whole model."""


def export(
    run: Folder, one: Kept, out: Path, show: OnMergeProgress, *, fold: bool = False, base: str | None = None
) -> Exported:
    """Write a checkpoint's policy to the new folder `out`; with `fold` an adapter is added into its base.

    Raises `Problems`, and then nothing is left at `out`.
    """
    if not one.path.is_dir():
        got = f"has no checkpoint of step {one.step} any more"
        raise Problems(Problem(run.name, got, "choose another with --step", "not-found"))
    with _policy_folder(run, one, out) as folder:
        policy = open_model(str(folder))
        if fold and not policy.is_adapter:
            got = f"step {one.step} of {run.name} holds a whole model"
            raise Problems(Problem("--merge", got, "leave it out", "conflicting-settings"))
        if base and not fold:
            raise Problems(Problem("--base", "has an effect only with --merge", "leave it out", "conflicting-settings"))
        if fold:
            merged = merge(MergeRequest(LORA, (str(policy.path),), out, base=base), show)
            return Exported(**vars(merged), step=one.step, adapter=False)
        return _copy_policy(one, out, show, policy)


@contextmanager
def _policy_folder(run: Folder, one: Kept, out: Path) -> Iterator[Path]:
    """The folder of the checkpoint's policy; a temporary one beside `out` where its engine has a format of its own."""
    if folder := policy_folder(one.path):
        yield folder
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".rlrun-merged-", dir=out.parent) as beside:
        target = Path(beside) / "merged"
        try:
            engine = read_run(run.path).engine
        except ValidationError as error:
            raise Problems(explain(error, {})) from error
        engine.write_policy(one.path, target)
        yield target


def _copy_policy(one: Kept, out: Path, show: OnMergeProgress, policy: ModelFolder) -> Exported:
    """Copy the policy, and its base where that is beside it, as they are."""
    files = [path for path in policy.path.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    if problems := out_problems(out, [one.path.resolve()], size):
        raise Problems(problems)
    with draft_folder(out) as draft:
        done = 0
        for path in files:
            target = draft / path.relative_to(policy.path)
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, target)
            done += path.stat().st_size
            show("copying", done, size)
        weights = [*draft.rglob("*.safetensors")]
        digests = {path.relative_to(draft).as_posix(): sha256(path) for path in weights}
        expected, folder = folder_digests(policy.path), policy.path.name
        changed = [name for name, digest in digests.items() if expected.get(f"{folder}/{name}", digest) != digest]
        if changed or (not expected and faults(one.path)):
            where = str(policy.path / changed[0]) if changed else str(one.path)
            raise Problems(Problem(where, "changed while it was copied", "try again", "changed"))
        count = sum(len(tensors(path.parent, [path.name])) for path in weights)
        written = sum(path.stat().st_size for path in weights)
    return Exported(out, count, written, digests, (), one.step, policy.is_adapter)
