"""Types of requests and responses, for validation and for OpenAPI. Responses are built by the functions of the command
line; these types describe them."""

from __future__ import annotations

from typing import Annotated, Generic, Literal, TypeVar

from fastapi import Path, Query
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints
from pydantic_core import PydanticCustomError

from launcher.core.events import Level
from launcher.server.records import VALID

Number = float | Literal["NaN", "Infinity", "-Infinity"]


def _reject_nul(text: str) -> str:
    """Raises `ValueError` for a NUL, which databases and file names cannot hold."""
    if "\0" in text:
        raise PydanticCustomError("nul", "it holds a NUL", {"fix": "leave that out"})
    return text


Text = Annotated[str, StringConstraints(max_length=20_000), AfterValidator(_reject_nul)]
"""What a person typed."""
Tags = Annotated[list[Text], Field(max_length=100), AfterValidator(lambda tags: list(dict.fromkeys(tags)))]
Uuid = Annotated[str, Path(pattern=f"^{VALID.pattern}$", description="A job's id.")]


class HeldOutNode(BaseModel):
    """The main score of a validation, with the ends of its 95 % interval where that is known."""

    name: str
    label: str
    step: int
    value: Number
    low: Number | None
    high: Number | None


class ScoreNode(BaseModel):
    name: str
    label: str
    value: Number


class VerdictNode(BaseModel):
    kind: str
    text: str
    fix: str
    line: str


class JobNode(BaseModel):
    """A job; beside these it has the documents' words, such as `learning_rate`, that were sent with it."""

    model_config = ConfigDict(extra="allow")
    uuid: str
    name: str
    description: str
    tags: list[str]
    notes: str
    who: str
    run: str = Field(description="project/experiment; empty before it is started")
    origin: str
    algorithm: str
    model: str
    status: Literal[
        "created", "waiting", "running", "stopping", "pausing", "paused", "finished", "doubtful", "failed", "stopped"
    ]
    reason: str
    since: float
    created_at: float
    started_at: float | None
    elapsed_s: float
    step: int
    steps: int
    progress: float | None
    eta_s: float | None
    seconds_per_step: float | None
    phase: str
    attempt: int
    score: ScoreNode | None
    held_out: dict[Literal["first", "best", "last"], HeldOutNode | None] | None
    verdict: VerdictNode | None
    alerts: dict[Level, int]


Item = TypeVar("Item")


PageNumber = Annotated[int, Query(ge=1, le=10**6)]
PageSize = Annotated[int, Query(ge=1, le=1_000)]


class ListPage(BaseModel, Generic[Item]):
    """A part of a list that is counted whole."""

    items: list[Item]
    total: int
    page: int
    size: int


# ---- what requests hold


class RequestBody(BaseModel):
    """Fields that are unknown are named, with the nearest one that is known."""

    model_config = ConfigDict(extra="forbid")


def _reject_option(text: str) -> str:
    if text.startswith("-"):
        raise PydanticCustomError("option", "an option", {"fix": "use a setting, such as optim.lr=1e-5"})
    return text


MOST_ARGUMENTS = 400
Arguments = Annotated[
    list[Annotated[Text, StringConstraints(min_length=1), AfterValidator(_reject_option)]],
    Field(max_length=MOST_ARGUMENTS),
]
"""Arguments as after `rlrun train`; none is an option."""
