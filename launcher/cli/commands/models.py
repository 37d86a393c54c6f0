"""`rlrun model list | show | download | size | merge`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from launcher.cli.commands.merge import merge
from launcher.cli.output import AsJson, make_table, out, printable, problems_named, say, say_json, say_problems, wide
from launcher.cli.progress import show_download
from launcher.config.resolve import conf_dir
from launcher.core.problems import Problems
from launcher.core.settings import adapter
from launcher.hubs import manifest
from launcher.models import catalogue, size, store
from launcher.models.catalogue import KnownModel
from launcher.spec.model import Architecture

app = typer.Typer(no_args_is_help=True, help="List, inspect, download and merge models.")

Word = Annotated[str, typer.Argument(metavar="NAME-OR-ID-OR-FOLDER", help="qwen3-0.6b, owner/name, or a folder.")]


def _group() -> Path:
    return conf_dir() / "model"


@contextmanager
def _faults_named() -> Iterator[None]:
    """Exit codes: 2 for invalid input, 1 for a network failure, 130 for Ctrl-C."""
    try:
        with problems_named():
            try:
                yield
            except Problems as found:
                if not any(problem.code == "not-reachable" for problem in found.problems):
                    raise
                say_problems(found.lines)
                raise typer.Exit(1) from None
    except KeyboardInterrupt:
        say_problems(["stopped; run the same command to continue"])
        raise typer.Exit(130) from None


@app.command("list")
def list_models(as_json: AsJson = False) -> None:
    """List the catalogue and the models on this machine."""
    with problems_named():
        found = catalogue.list_models(_group())
    if as_json:
        return say_json([_node(known) for known in found])
    table = make_table("name", "parameters", "context", "hub", "here", right=("parameters", "context"))
    for known in found:
        shape = known.architecture
        table.add_row(
            Text(printable(known.name or ""), "bold"), _billions(known.parameters),
            str(shape.max_position_embeddings) if shape else "",
            Text(printable(f"{known.repo}{' (gated)' if known.gated else ''}")),
            Text(printable(str(known.folder)) if known.folder else "", "green"),
        )  # fmt: skip
    wide().print(table)
    return None


@app.command("show")
def show(word: Word, verify: Annotated[bool, typer.Option("--verify", help="Hash every file again.")] = False,
         as_json: AsJson = False) -> None:  # fmt: skip
    """Show a model's architecture, size and folder."""
    with problems_named():
        known = catalogue.find_model(word, _group())
        faults = [str(each) for each in manifest.verify(known.folder)] if verify and known.folder else []
    if as_json:
        say_json({**_node(known), **({"faults": faults} if verify else {})})
    else:
        table = make_table()
        for name, value in _rows(known):
            table.add_row(Text(name, "dim"), Text(printable(value)))
        wide().print(table)
        say_problems(faults)
    if faults:
        raise typer.Exit(1)


def _rows(known: KnownModel) -> Iterator[tuple[str, str]]:
    yield "model", str(known.repo or known.folder)
    if known.parameters:
        yield "parameters", f"{known.parameters:,}"
    for name, value in _numbers(known.architecture).items():
        yield name, str(value)
    if known.gated:
        yield "gated", "its licence has to be accepted on its page"
    if known.manifest:
        of = known.manifest
        yield "came from", f"{of.source} {of.repo} at {of.commit}"
    yield "folder", str(known.folder) if known.folder else "not here"
    for name, count in known.files():
        yield "", f"{name}  {count:,} bytes"


@app.command("download")
def download(
    word: Annotated[str, typer.Argument(metavar="NAME-OR-ID", help="qwen3-0.6b, or owner/name.")],
    source: Annotated[
        Literal["auto", "huggingface", "modelscope"] | None, typer.Option("--source", help="Hub to download from.")
    ] = None,
    revision: Annotated[str | None, typer.Option("--revision", help="Branch, tag or commit.")] = None,
    to: Annotated[Path | None, typer.Option("--to", metavar="FOLDER", help="Download to this folder.")] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, max=32, help="Number of parallel downloads.")] = 4,
    as_json: AsJson = False,
) -> None:
    """Download a model: safetensors, tokenizer and configuration, each file verified. A second call resumes.

    Exit code 0 when it is complete, 1 when the network failed, 2 for invalid input.
    """
    with _faults_named():
        asked = catalogue.resolve_model(word, _group())
        asked = replace(asked, source=source) if source else asked
        with show_download() as watch:
            folder = store.download(
                asked.path, watch, sources=asked.hub_order, revision=revision or asked.revision, to=to, workers=workers
            )  # fmt: skip
        known = catalogue.find_model(str(folder), _group())
    if as_json:
        return say_json(_node(known))
    say(f"{asked.path} is in {folder}")
    return None


@app.command("size")
def sizes(
    word: Word,
    rank: Annotated[int, typer.Option("--lora-rank", min=1, help="Rank of adapters.")] = 16,
    as_json: AsJson = False,
) -> None:
    """Show the memory a model needs: weights, training and serving (without activations)."""
    with problems_named():
        known = catalogue.find_model(word, _group())
    node = {"model": known.repo or str(known.folder), **size.costs(known.parameters, known.architecture, rank)}
    if as_json:
        return say_json(node)
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    for name, value in _flat(node):
        shown = "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
        amount = f"{value / 1e9:,.2f} GB" if isinstance(value, int) and "bytes" in name and value >= 1e7 else ""
        table.add_row(Text(printable(name), "dim"), Text(printable(shown)), Text(amount, "bold"))
    out.print(table)
    return None


app.command("merge")(merge)


def _flat(node: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in node.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name} ")
        else:
            yield f"{before}{name}", value


def _numbers(shape: Architecture | None) -> dict[str, Any]:
    return dict(adapter(Architecture).dump_python(shape, mode="json")) if shape else {}


def _node(known: KnownModel) -> dict[str, Any]:
    of = known.manifest
    return {
        "name": known.name, "id": known.repo, "parameters": known.parameters,
        "context": known.architecture.max_position_embeddings if known.architecture else None,
        "gated": known.gated, "folder": str(known.folder) if known.folder else None,
        "source": of.source if of else None, "revision": of.revision if of else None,
        "commit": of.commit if of else None, "architecture": _numbers(known.architecture) or None,
        "files": [{"name": name, "bytes": count} for name, count in known.files()],
    }  # fmt: skip


def _billions(count: int | None) -> str:
    return "" if count is None else f"{count / 1e9:.2f} B"
