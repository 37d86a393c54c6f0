"""Exports checkpoints as plain model folders, and merges models. Both write below exports/ of the run root, and run the
command in a subprocess, as it loads torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from fastapi import Path as InPath
from pydantic import Field

from launcher.core.bounded_parse import parse_json
from launcher.core.problems import Problem, Problems
from launcher.runs import kept_checkpoints
from launcher.server.answers import Json
from launcher.server.problems import declared
from launcher.server.rows import last_words
from launcher.server.services import Services, UsesServices
from launcher.server.values import RequestBody, Text, Uuid

router = APIRouter(prefix="/api", tags=["models"], responses=declared(404, 409, 422))
FOLDER = r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$"
MODEL = r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}(@[0-9]{1,9})?$"


class ExportBody(RequestBody):
    to: Annotated[Text | None, Field(pattern=FOLDER, description="A new folder below exports/ of the run root.")] = None
    merge: Annotated[bool, Field(description="A LoRA adapter is added into its base.")] = False


@router.post("/jobs/{uuid}/checkpoints/{step}/export", status_code=201, responses={201: {"model": dict[str, Any]}})
def export_checkpoint(
    uuid: Uuid, step: Annotated[int, InPath(ge=0, le=2**53)], services: UsesServices, body: ExportBody | None = None
) -> Json:
    """Write a checkpoint as a plain model folder, as `rlrun checkpoints export --to hf` does; answers once it is
    there."""
    body, folder = body or ExportBody.model_construct(), services.jobs.get(uuid).folder
    services.launching.check_own(uuid)
    kept_checkpoints.of_step(folder, step, "step")
    to = _new_model_folder(services, body.to or f"{folder.path.name}-step-{step}")
    words = ["checkpoints", "export", str(folder.path), "--to", "hf", "--out", str(to), "--step", str(step)]
    return Json(_relative_to_root(services, _run_command(*words, *(["--merge"] if body.merge else []))), 201)


class MergeBody(RequestBody):
    models: Annotated[
        list[Annotated[str, Field(pattern=MODEL)]],
        Field(min_length=1, max_length=16, description="`UUID`, `UUID@STEP`, or a folder below exports/."),
    ]
    method: Literal["linear", "slerp", "ties", "lora"]
    to: Annotated[Text, Field(pattern=FOLDER, description="A new folder below exports/ of the run root.")]
    base: Annotated[str | None, Field(pattern=MODEL)] = None
    weights: Annotated[list[float] | None, Field(max_length=16)] = None
    t: Annotated[float | None, Field(ge=0, le=1)] = None
    density: Annotated[float | None, Field(gt=0, le=1)] = None
    scale: Annotated[float | None, Field(allow_inf_nan=False)] = None


@router.post("/merge", status_code=201, responses={201: {"model": dict[str, Any]}})
def merge_models(body: MergeBody, services: UsesServices) -> Json:
    """Merge models into a new one, as `rlrun model merge` does; answers once it is there."""
    options: dict[str, Any] = {"--t": body.t, "--density": body.density, "--scale": body.scale}
    options["--weights"] = ",".join(map(repr, body.weights)) if body.weights else None
    options["--base"] = _model_folder(services, body.base) if body.base else None
    words = ["model", "merge", "--method", body.method, "--out", str(_new_model_folder(services, body.to))]
    words += [f"{name}={value}" for name, value in options.items() if value is not None]
    models = [_model_folder(services, name) for name in body.models]
    return Json(_relative_to_root(services, _run_command(*words, "--", *models)), 201)


def _new_model_folder(services: Services, name: str) -> Path:
    folder = services.settings.root.absolute() / "exports" / name
    if folder.exists():
        raise Problems(Problem("to", f"{name} is there already", "use another name", "in-use"))
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    return folder


def _model_folder(services: Services, name: str) -> str:
    """The folder of a model: that below exports/, else the checkpoint of `UUID` or `UUID@STEP`. Raises `Problems`."""
    exported = services.settings.root.absolute() / "exports" / name
    if "@" not in name and exported.is_dir():
        return str(exported)
    uuid, _, step = name.partition("@")
    folder = services.jobs.get(uuid).folder
    checkpoint = kept_checkpoints.of_step(folder, int(step), "step") if step else kept_checkpoints.newest(folder)
    return str(checkpoint.path.absolute())


def _run_command(*words: str) -> dict[str, Any]:
    """Run a command of two words in a subprocess; returns the JSON that it prints. Raises `Problems` if it fails."""
    command = [sys.executable, "-P", "-m", "launcher", *words[:2], "--json", *words[2:]]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if result.returncode:
        problems = [Problem("", line) for line in last_words(result.stderr)]
        raise Problems(problems or Problem(words[0], f"ended with {result.returncode}"))
    answer: dict[str, Any] = parse_json(result.stdout)
    return answer


def _relative_to_root(services: Services, answer: dict[str, Any]) -> dict[str, Any]:
    """The answer with paths relative to the run root."""
    root = f"{services.settings.root.absolute()}/"
    return {key: value.removeprefix(root) if isinstance(value, str) else value for key, value in answer.items()}
