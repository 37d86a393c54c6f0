"""Export a checkpoint as a Hugging Face folder, written to a draft, read back and renamed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher import __version__
from launcher.core import checkpoints
from launcher.core.metrics import validation
from launcher.core.problems import Problem, Problems
from launcher.core.redaction import redact
from launcher.runs.folder import Folder
from launcher.runs.kept_checkpoints import Kept
from launcher.tools.merge import folder as models
from launcher.tools.merge import merge, output
from launcher.tools.merge.plan import LORA, MergeRequest
from launcher.tools.merge.tensors import TensorShape

Show = Callable[[str, int, int], None]
README = "README.md"


@dataclass(frozen=True)
class Exported:
    path: Path
    step: int
    bytes: int
    tensors: int
    adapter: bool
    """Whether it holds a LoRA adapter and not a whole model."""
    files: Mapping[str, str]
    """sha256 of the weights' files."""


def export(run: Folder, one: Kept, out: Path, show: Show, *, fold: bool = False, base: str | None = None) -> Exported:
    """Write a checkpoint's policy to the new folder `out`; with `fold` an adapter is added into its base.

    Raises `Problems`, and then nothing is left at `out`.
    """
    policy = models.open_model(str(one.path / "policy"))
    if fold and not policy.is_adapter:
        raise Problems(
            Problem(
                "--merge", f"step {one.step} of {run.name} holds a whole model", "leave it out", "conflicting-settings"
            )
        )
    if base and not fold:
        raise Problems(Problem("--base", "has an effect only with --merge", "leave it out", "conflicting-settings"))
    if fold:
        texts = {README: _card(run, one, None)}
        made = merge.merge(MergeRequest(LORA, (str(policy.path),), out, base=base, texts=texts), show)
        return Exported(out, one.step, made.bytes, made.tensors, False, made.files)
    return _copied(run, one, policy, out, show)


def _copied(run: Folder, one: Kept, policy: models.ModelFolder, out: Path, show: Show) -> Exported:
    parts, checkpoint = [policy], one.path.resolve()
    if (policy.path / "base").is_dir():
        parts.append(models.open_model(str(policy.path / "base")))
    weights = [file for part in parts for file in part.files]
    size = sum(file.stat().st_size for file in weights)
    if wrong := output.out_problems(out, [checkpoint], size):
        raise Problems(wrong)
    manifest = json.loads((one.path / checkpoints.MANIFEST).read_text())["files"]
    done = [0]

    def told(doing: str) -> Callable[[int], None]:
        def more(count: int) -> None:
            done[0] += count
            show(doing, done[0], 2 * size)

        return more

    digests = {}
    with output.draft_folder(out) as draft:
        for part in parts:
            to = draft / part.path.relative_to(policy.path)
            to.mkdir(exist_ok=True)
            index = [part.path / models.INDEX] if (part.path / models.INDEX).is_file() else []
            output.copy_neighbours(part.path, [*output.neighbour_files(part.path), *index], to)
            found = {file.name: output.copy_file(file, to / file.name, told("copying")) for file in part.files}
            for name, digest in found.items():
                inside = (part.path / name).relative_to(checkpoint).as_posix()
                if digest != manifest[inside]["sha256"]:
                    raise Problems(
                        Problem(f"{one.path.name}/{inside}", "changed while it was copied", "try again", "changed")
                    )
                digests[(to / name).relative_to(draft).as_posix()] = digest
            shapes = [TensorShape(tensor.name, tensor.dtype, tensor.shape) for tensor in part.tensors.values()]
            output.read_back(to, shapes, found, told("reading back"))
        (draft / README).write_text(redact(_card(run, one, _base_of(policy))), encoding="utf-8")
    tensors = sum(len(part.tensors) for part in parts)
    return Exported(out, one.step, size, tensors, policy.is_adapter, digests)


def _base_of(policy: models.ModelFolder) -> str | None:
    """Where the model that an adapter belongs to is found; None of a whole model."""
    if not policy.is_adapter:
        return None
    beside = (policy.path / "base").is_dir()
    return "the folder `base` beside it" if beside else f"`{policy.config.get('base_model_name_or_path')}`"


def _card(run: Folder, one: Kept, base: str | None) -> str:
    """A model card: which run, which step, how good."""
    rows = [f"| `{name}` | {value:.6g} |" for name, value in sorted(validation(one.metrics).items())]
    return "\n".join(
        [
            "---", f"library_name: {'peft' if base else 'transformers'}", "tags: [rlrun]", "---", "",
            f"# {run.path.name}", "",
            f"Step {one.step} of the run `{run.name}`, exported by rlrun {__version__}.", "",
            *([f"It is a LoRA adapter (peft); the model it belongs to is {base}.", ""] if base else []),
            *(["| held out | |", "|---|--:|", *rows] if rows else ["It was not validated."]), "",
        ]
    )  # fmt: skip
