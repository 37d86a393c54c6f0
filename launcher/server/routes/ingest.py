"""`POST /api/jobs/{uuid}/rows`: rows from the logger of a training script."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field

from launcher.logger.spool import JOB
from launcher.server.problems import declared
from launcher.server.services import UsesServices

router = APIRouter(prefix="/api", tags=["logger"], responses=declared(409, 422))


class SessionRows(BaseModel):
    """Rows of one session of a logger. A row's number is its place in the session, from 0; null is a row that is none
    for the platform."""

    model_config = {"json_schema_extra": {"examples": [{"session": "18c0a1-5f", "first": 0, "rows": [
        {"kind": "begin", "at": 1700000000.0},
        {"kind": "metrics", "at": 1700000001.0, "step": 1, "metrics": {"policy_loss": 0.5}, "epoch": 0},
        {"kind": "metrics", "at": 1700000001.0, "step": 1, "metrics": {}, "held_out": {"gsm8k": 0.35}},
        {"kind": "gpu", "at": 1700000001.0, "gpu_index": 0, "utilization": 92.5, "memory_used": 65.0,
         "memory_total": 80.0, "temperature": 72.0},
        {"kind": "checkpoint", "at": 1700000002.0, "step": 1, "path": "checkpoints/step-1"},
        {"kind": "status", "at": 1700000002.0, "status": "running", "message": "one step is done"},
        {"kind": "finish", "at": 1700000003.0, "how": "finished", "why": ""},
    ]}]}}  # fmt: skip

    session: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,63}$")]
    first: Annotated[int, Field(ge=0, le=2**53, description="Number of the first of these rows.")]
    rows: Annotated[list[dict[str, Any] | None], Field(max_length=1000)]


class Stored(BaseModel):
    """What is durable now."""

    next: Annotated[int, Field(description="Number of the first row that is not stored.")]


@router.post("/jobs/{uuid}/rows", summary="Rows of a logger")
def add_rows(
    uuid: Annotated[str, Path(pattern=f"^{JOB.pattern}$")], batch: SessionRows, services: UsesServices
) -> Stored:
    """Store rows, each once: those before `next` are passed over. Where rows before `first` are missing, nothing is
    stored, and `next` says where to go on. Without rows it only answers `next`."""
    return Stored(next=services.ingest.store(uuid, batch.session, batch.first, batch.rows))
