"""Prompts and answers of a run: training groups, held-out samples, tokens, and one prompt over the steps."""

from __future__ import annotations

import math
from itertools import chain
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Query
from pydantic import BaseModel

from launcher.core.episode_record import EpisodeRecord
from launcher.core.events import Event, Loaded, Sample, TrainingGroup
from launcher.core.problems import Problem, Problems
from launcher.core.state import training_answers
from launcher.server.answers import Json
from launcher.server.columns import NO_STEP
from launcher.server.problems import declared
from launcher.server.services import ReadRun, StepNumber, UsesRun
from launcher.server.tokens import NAME, answer_lines, tokens_in
from launcher.server.values import ListPage, Number, PageNumber, PageSize
from launcher.views.samples import ChangedAnswer, SampleFilter, answers_of, changed_words, compare_samples

router = APIRouter(prefix="/api/jobs/{uuid}", tags=["answers"], responses=declared(404, 422))
COMPARED = 2_000  # characters of two answers whose words are compared, which takes quadratic time


class GroupSummary(BaseModel):
    """The answers to one prompt of a training step. `mean` and `spread`, largest less smallest, are of their scores."""

    step: int
    group: int
    data_source: str
    prompt: str
    scores: list[Number]
    parts: dict[str, list[Number]]
    advantages: list[Number]
    mean: Number | None
    spread: Number | None


class GroupAnswer(BaseModel):
    text: str
    score: Number | None
    parts: dict[str, Number]
    advantage: Number | None
    episodes: list[EpisodeRecord]
    """Where the answer is an episode with an environment, that one; else none."""
    tokens: bool
    """Whether facts about its tokens are there."""


class GroupAnswers(GroupSummary):
    ground_truth: str
    answers: list[GroupAnswer]


class Token(BaseModel):
    """Log-probabilities by the trainer and by the sampler, and the ratio of both: null where a token is not
    learned from."""

    text: str
    log_prob: Number | None
    sampler_log_prob: Number | None
    ratio: Number | None
    advantage: Number | None
    learns: bool


class Words(BaseModel):
    what: Literal["same", "gone", "new"]
    words: str


class PromptPair(BaseModel):
    """The first answers to one prompt at two steps, as `rlrun samples --compare` prints them, and what differs."""

    prompt: str
    step: list[int]
    score: list[Number]
    response: list[str]
    episodes: list[list[EpisodeRecord]]
    changed: list[Words]


class PromptPairs(BaseModel):
    steps: list[int]
    """All that may be compared."""
    pairs: list[PromptPair]


def group_summary(of: TrainingGroup) -> dict[str, Any]:
    scores = [score for score in of.scores if math.isfinite(score)]
    return {
        "step": of.step, "group": of.group, "data_source": of.data_source, "prompt": of.prompt, "scores": of.scores,
        "parts": of.parts, "advantages": of.advantages, "mean": math.fsum(scores) / len(scores) if scores else None,
        "spread": max(scores) - min(scores) if scores else None,
    }  # fmt: skip


@router.get("/groups", response_model=ListPage[GroupSummary])
def get_groups(run: UsesRun, step: StepNumber | None = None, page: PageNumber = 1, size: PageSize = 50) -> Json:
    """Groups of a training step, by default of all, the latest step first."""
    places = run.columns.places_of(TrainingGroup, steps=None if step is None else [step])
    places = places[np.argsort(-places[:, 3], kind="stable")]
    groups = run.columns.read(places[(page - 1) * size : page * size], TrainingGroup)
    return Json({"items": list(map(group_summary, groups)), "total": len(places), "page": page, "size": size})


@router.get("/groups/{step}/{group}", response_model=GroupAnswers)
def get_group(run: UsesRun, step: int, group: int) -> Json:
    """One group with its answers."""
    event = _find_group(run, step, group)
    lines = _token_lines(run, step, group)
    answers = [
        {"text": answer.response, "score": answer.score, "parts": answer.parts, "advantage": answer.advantage,
         "episodes": answer.episodes, "tokens": number in lines}
        for number, answer in enumerate(training_answers(event))
    ]  # fmt: skip
    return Json({**group_summary(event), "ground_truth": event.ground_truth, "answers": answers})


@router.get("/tokens/{step}/{group}/{answer}", response_model=list[Token])
def get_tokens(run: UsesRun, step: int, group: int, answer: int) -> Json:
    """The tokens of an answer (0, 1, ...) of a group."""
    line = _token_lines(run, step, group).get(answer)
    if line is None:
        got = f"{NAME} has no tokens of answer {answer} of group {group} at step {step}"
        raise Problems(Problem("tokens", got, "an answer of which `tokens` is true has some", "not-found"))
    return Json(tokens_in(line))


@router.get("/samples", response_model=list[dict[str, Any]])
def get_samples(
    run: UsesRun,
    step: StepNumber | None = None,
    wrong: bool = False,
    limit: Annotated[int, Query(ge=1, le=10_000, description="Most prompts.")] = 10,
) -> Json:
    """What `rlrun samples --json` prints; `wrong` are answers with a score of 0 or less."""
    filters = SampleFilter(max_score=0.0 if wrong else math.inf)
    source = run.source(Sample, TrainingGroup, Loaded, steps=_steps_to_read(run, step, filters))
    return Json([*chain(*list(answers_of(source, step, filters).values())[:limit])])


@router.get("/prompts", response_model=PromptPairs)
def get_prompts(
    run: UsesRun,
    steps: Annotated[str, Query(pattern=r"^(\d{1,15},\d{1,15})?$", description="Two; by default first and last.")] = "",
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> Json:
    """Prompts that were answered at two steps, those whose score changed most first: held-out ones, else those of
    training steps. Steps that have answers, but to no prompt in common, have no pairs."""
    known = _steps_of(run, Sample)
    if len(known) < 2:
        known = _steps_of(run, TrainingGroup)
    if len(known) < 2 and not steps:
        return Json({"steps": [], "pairs": []})
    first, last = map(int, steps.split(",")) if steps else (known[0], known[-1])
    source = run.source(Sample, TrainingGroup, steps=(first, last))
    try:
        pairs = compare_samples(source.events, (first, last), SampleFilter())[:limit]
    except Problems:
        if not {first, last} <= set(known):
            raise
        pairs = []
    return Json({"steps": known, "pairs": list(map(_pair_node, pairs))})


def _steps_of(run: ReadRun, kind: type[Event]) -> list[int]:
    return sorted(set(run.columns.places_of(kind)[:, 3].tolist()) - {NO_STEP})


def _pair_node(of: ChangedAnswer) -> dict[str, Any]:
    differences = changed_words(of.before.response[:COMPARED], of.after.response[:COMPARED])
    return {
        **of.node, "episodes": [of.before.episodes, of.after.episodes],
        "changed": [{"what": what, "words": words} for what, words in differences],
    }  # fmt: skip


def _steps_to_read(run: ReadRun, step: int | None, criteria: SampleFilter) -> list[int]:
    """The steps whose answers have to be read; empty for all."""
    if step is not None or not criteria.any:
        return [] if step is None else [step]
    places = (run.columns.places_of(kind) for kind in (Sample, TrainingGroup))
    return [int(rows[-1, 3]) for rows in places if len(rows)]


def _find_group(run: ReadRun, step: int, group: int) -> TrainingGroup:
    """The last event of this group. Raises `Problems` where there is none."""
    groups = list(run.columns.events(TrainingGroup, steps=[step]))
    if matches := [event for event in groups if event.group == group]:
        return matches[-1]
    known = ", ".join(str(event.group) for event in groups)
    fix = f"step {step} has the groups {known}" if known else "groups lists those that were logged: trainer.log_groups"
    raise Problems(Problem(f"group {group}", f"none of step {step} is logged", fix, "not-found"))


def _token_lines(run: ReadRun, step: int, group: int) -> dict[int, bytes]:
    """The lines of its answers; none where the file is a link that leads out of the folder, as a copied one may be."""
    file, root = run.folder.path / NAME, run.folder.path.resolve()
    return answer_lines(file, step, group) if file.is_file() and file.resolve().is_relative_to(root) else {}
