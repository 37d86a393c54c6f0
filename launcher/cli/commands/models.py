"""`rlrun model list | download | merge`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from launcher.cli.output import Cell, CommandAnswer, CommandGroup, make_table, say, say_problems, say_table, tell
from launcher.cli.progress import show_bytes, show_download
from launcher.core.files import conf_dir
from launcher.core.problems import Problem, Problems, short_repr
from launcher.hubs.choice import hubs_of
from launcher.models import catalogue, size, store
from launcher.models.pretrained import Pretrained

if TYPE_CHECKING:
    from launcher.tools.merge.merge import MergeResult

app = CommandGroup()
CATALOGUE = conf_dir() / "model"


@app.command("list")
def list_models() -> CommandAnswer:
    """List the catalogue, and where its models are on this machine."""
    nodes = [_model_node(name, model) for name, model in catalogue.choices(CATALOGUE).items()]
    return CommandAnswer(nodes, lambda: _say_models(nodes))


def _say_models(nodes: list[dict[str, Any]]) -> None:
    rows = list[list[Cell]]()
    for node in nodes:
        count, context = node["parameters"], node["context"]
        numbers = ["" if count is None else f"{count / 1e9:.2f} B", str(context or "")]
        hub = f"{node['id']}{' (gated)' if node['gated'] else ''}"
        rows.append([(node["name"], "bold"), *numbers, hub, (node["folder"] or "", "green")])
    say_table(make_table(["name", "parameters", "context", "hub", "here"], rows, right=["parameters", "context"]))


@app.command("download")
def download(
    word: Annotated[str, typer.Argument(metavar="NAME-OR-ID", help="qwen3-0.6b, or owner/name.")],
    source: Annotated[
        Literal["auto", "huggingface", "modelscope"] | None, typer.Option("--source", help="Hub to download from.")
    ] = None,
    revision: Annotated[str | None, "Branch, tag or commit."] = None,
    to: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Download to this folder.")] = None,
    workers: Annotated[int, typer.Option(min=1, max=32, help="Number of parallel downloads.")] = 4,
) -> CommandAnswer:
    """Download a model: safetensors, tokenizer and configuration, each file verified. A second call resumes.

    Exit code 0 when it is complete, 1 when the network failed, 2 for invalid input.
    """
    entry = catalogue.resolve_model(word, CATALOGUE)
    hubs, revision = hubs_of(source or entry.source), revision or entry.revision
    try:
        with show_download() as watch:
            folder = store.download(entry.path, watch, sources=hubs, revision=revision, to=to, workers=workers)
    except Problems as failure:
        if not any(problem.code == "not-reachable" for problem in failure.problems):
            raise
        say_problems(failure.lines)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        say_problems(["stopped; run the same command to continue"])
        raise typer.Exit(130) from None
    return CommandAnswer({"id": entry.path, "folder": str(folder)}, lambda: say(f"{entry.path} is in {folder}"))


def _model_node(name: str, model: Pretrained) -> dict[str, Any]:
    shape, folder = model.architecture, store.find(model.path, model.revision)
    return {
        "name": name, "id": model.path, "parameters": size.parameters(shape) if shape else None,
        "context": shape.max_position_embeddings if shape else None, "gated": model.gated,
        "folder": str(folder) if folder else None,
    }  # fmt: skip


@app.command("merge")
def merge(
    models: Annotated[list[str], typer.Argument(metavar="MODEL", help="Folders of models, checkpoints or runs.")],
    method: Annotated[str, "linear, slerp, ties, or lora (adapter into base)."],
    to: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="The new model's folder.")],
    base: Annotated[str | None, "ties: the model that they were fine-tuned from; lora: the adapter's base."] = None,
    weights: Annotated[str | None, "linear: one for each model, such as 0.7,0.3; divided by their sum."] = None,
    t: Annotated[float | None, "slerp: position between the first (0) and the second (1); default 0.5."] = None,
    density: Annotated[float | None, "ties: share of the changes that is kept; default 0.2."] = None,
    scale: Annotated[float | None, "ties: factor of the changes; default 1."] = None,
) -> CommandAnswer:
    """Merge models into a new one. The inputs are checked before, and the sizes of what was written after."""
    from launcher.tools.merge import merge as merging  # noqa: PLC0415  # late: torch takes a second

    began = time.monotonic()
    typed = {"weights": _parse_weights(weights), "t": t, "density": density, "scale": scale}
    options = {name: value for name, value in typed.items() if value is not None}
    request = merging.MergeRequest(method, tuple(models), to, options, base)
    with show_bytes() as show:
        merged = merging.merge(request, show)
    return CommandAnswer(merged, lambda: _say_merged(merged, time.monotonic() - began))


def _say_merged(merged: MergeResult, seconds: float) -> None:
    for note in merged.notes:
        tell(f"note: {note}", "yellow")
    size = f"{merged.bytes / 1e6:,.0f} MB, {merged.tensors} tensors, {len(merged.files)} files"
    say(f"{merged.path}  {size}, checked, {seconds:.1f} s")


def _parse_weights(text: str | None) -> tuple[float, ...] | None:
    """The numbers of a text such as `0.7,0.3`. Raises `Problems`."""
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise Problems(Problem("--weights", f"got {short_repr(text)}", "use numbers such as 0.7,0.3")) from None
