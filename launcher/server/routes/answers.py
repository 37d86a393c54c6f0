"""Prompts and answers of a run: training groups, held-out samples, tokens, and one prompt over the steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Query
from pydantic import BaseModel

from launcher.core.events import Loaded, Sample, TrainingGroup
from launcher.core.problems import Problem, Problems, short_repr
from launcher.core.prompt_scores import prompt_digest
from launcher.core.state import TrainingAnswer, training_answers
from launcher.server.answers import Json
from launcher.server.columns import Ints
from launcher.server.problems import declared
from launcher.server.reading import PageNumber, PageSize, ReadRun, StepNumber, UsesRun, page_of
from launcher.server.services import read_now
from launcher.server.tokens import NAME, TokenPlaces
from launcher.server.values import ListPage, Number, Text
from launcher.views.samples import SampleFilter, answers_of, changed_words, compare_samples

router = APIRouter(prefix="/api/jobs/{uuid}", tags=["answers"], responses=declared(404, 422))
COMPARED = 2_000  # characters of two answers whose words are compared, which takes quadratic time
MOST_READ = 20_000  # answers that are read to find prompts with answers at several steps
SHORT = 300  # characters of a prompt in a list
Score = Annotated[float | None, Query(allow_inf_nan=False)]


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


class ToolCallNode(BaseModel):
    name: str
    arguments: str
    seconds: Number
    error: str


class TurnNode(BaseModel):
    """What the policy wrote, the calls in it, and what the environment said to it."""

    text: str
    observation: str
    reward: Number
    advantage: Number | None
    calls: list[ToolCallNode]


class EpisodeNode(BaseModel):
    outcome: str
    turns: list[TurnNode]
    fault: str
    """Why it has no score."""


class GroupAnswer(BaseModel):
    text: str
    score: Number | None
    parts: dict[str, Number]
    advantage: Number | None
    episodes: list[EpisodeNode]
    """Where the answer is an episode with an environment, that one; else none."""
    tokens: bool
    """Whether facts about its tokens are there."""


class GroupAnswers(GroupSummary):
    ground_truth: str
    answers: list[GroupAnswer]


class GroupPage(ListPage[GroupSummary]): ...


class Token(BaseModel):
    """Log-probabilities by the trainer and by the sampler, and the ratio of both: null where a token is not
    learned from."""

    text: str
    log_prob: Number | None
    sampler_log_prob: Number | None
    ratio: Number | None
    advantage: Number | None
    learns: bool


class AnswerTokens(BaseModel):
    tokens: list[Token]


class PromptRow(BaseModel):
    digest: str
    kind: Literal["held out", "training"]
    data_source: str
    prompt: str
    steps: list[int]
    scores: list[Number | None]
    """The mean over the answers of each step."""


class PromptPage(ListPage[PromptRow]):
    complete: bool
    """Whether all answers were looked at; of very many only the latest are."""


class StepAnswers(BaseModel):
    step: int
    answers: list[GroupAnswer]


class Words(BaseModel):
    what: Literal["same", "gone", "new"]
    words: str


class PromptOverTime(BaseModel):
    digest: str
    data_source: str
    prompt: str
    ground_truth: str
    steps: list[StepAnswers]
    changed: list[Words]
    """From the first answer of the first step to that of the last."""


def group_summary(of: TrainingGroup) -> dict[str, Any]:
    scores = [score for score in of.scores if math.isfinite(score)]
    return {
        "step": of.step, "group": of.group, "data_source": of.data_source, "prompt": of.prompt, "scores": of.scores,
        "parts": of.parts, "advantages": of.advantages, "mean": math.fsum(scores) / len(scores) if scores else None,
        "spread": max(scores) - min(scores) if scores else None,
    }  # fmt: skip


@router.get("/groups", response_model=GroupPage)
def get_groups(run: UsesRun, step: StepNumber | None = None, page: PageNumber = 1, size: PageSize = 50) -> Json:
    """Groups of a training step, by default of all, the latest step first."""
    places = run.columns.places_of(TrainingGroup, steps=None if step is None else [step])
    places = places[np.argsort(-places[:, 3], kind="stable")]
    groups = run.columns.read(places[(page - 1) * size : page * size], TrainingGroup)
    items = list(map(group_summary, groups))
    return Json(page_of(items, len(places), page, size))


@router.get("/groups/{step}/{group}", response_model=GroupAnswers)
def get_group(run: UsesRun, step: int, group: int) -> Json:
    """One group with its answers."""
    event = _find_group(run, step, group)
    index = _token_places(run)
    answers = [
        _answer_node(answer, tokens=index.place((step, group, number)) is not None)
        for number, answer in enumerate(training_answers(event))
    ]
    return Json({**group_summary(event), "ground_truth": event.ground_truth, "answers": answers})


@router.get("/tokens/{step}/{group}/{answer}", response_model=AnswerTokens)
def get_tokens(run: UsesRun, step: int, group: int, answer: int) -> Json:
    """The tokens of an answer (0, 1, ...) of a group."""
    event = _find_group(run, step, group)
    tokens = _token_places(run).read((step, group, answer)) if 0 <= answer < len(event.responses) else None
    if tokens is None:
        got = f"{NAME} has no tokens of answer {answer} of group {group} at step {step}"
        raise Problems(Problem("tokens", got, "an answer of which `tokens` is true has some", "not-found"))
    return Json({"tokens": tokens})


@router.get("/samples", response_model=list[dict[str, Any]])
def get_samples(
    run: UsesRun,
    step: StepNumber | None = None,
    wrong: bool = False,
    changed: Annotated[str, Query(pattern=r"^(\d{1,15},\d{1,15})?$", description="Two steps: what changed.")] = "",
    search: Annotated[Text, Query(max_length=1_000)] = "",
    min_score: Score = None,
    max_score: Score = None,
    group: Annotated[int | None, Query(ge=1, lt=2**53)] = None,
    training: bool = False,
    limit: Annotated[int, Query(ge=1, le=10_000, description="Most prompts.")] = 10,
) -> Json:
    """What `rlrun samples --json` prints; `wrong` are answers with a score of 0 or less."""
    least = -math.inf if min_score is None else min_score
    most = max_score if max_score is not None else 0.0 if wrong else math.inf
    filters = SampleFilter(search, least, most, group, training)
    if changed:
        first, second = map(int, changed.split(","))
        source = run.source(Sample, TrainingGroup, steps=(first, second))
        return Json([pair.node for pair in compare_samples(source.events, (first, second), filters)[:limit]])
    source = run.source(Sample, TrainingGroup, Loaded, steps=_steps_to_read(run, step, filters))
    return Json([*chain(*list(answers_of(source, step, filters).values())[:limit])])


@router.get("/prompts", response_model=PromptPage)
def get_prompts(run: UsesRun, page: PageNumber = 1, size: PageSize = 50) -> Json:
    """Prompts that were answered at more than one step, those whose score changed most first."""
    places = run.columns.places_of(Sample, TrainingGroup)
    rows = dict[tuple[bool, str], dict[str, Any]]()
    means = dict[tuple[bool, str], dict[int, list[float]]]()
    for event in _read_answers(run, places):
        key = isinstance(event, TrainingGroup), prompt_digest(event.prompt, event.ground_truth)
        rows.setdefault(key, {"digest": key[1], "kind": "training" if key[0] else "held out",
                              "data_source": event.data_source, "prompt": event.prompt[:SHORT]})  # fmt: skip
        scores = event.scores if isinstance(event, TrainingGroup) else (event.value,)
        means.setdefault(key, {}).setdefault(event.step, []).extend(scores)
    results = []
    for key, by_step in means.items():
        if len(by_step) > 1:
            steps = sorted(by_step)
            results.append({**rows[key], "steps": steps, "scores": [_mean(by_step[step]) for step in steps]})
    results.sort(key=lambda row: -abs((row["scores"][-1] or 0.0) - (row["scores"][0] or 0.0)))
    page_rows = results[(page - 1) * size : page * size]
    return Json({**page_of(page_rows, len(results), page, size), "complete": len(places) <= MOST_READ})


@router.get("/prompts/{digest}", response_model=PromptOverTime)
def get_prompt(
    run: UsesRun, digest: str, steps: Annotated[str, Query(pattern=r"^(\d{1,15}(,\d{1,15}){0,19})?$")] = ""
) -> Json:
    """The answers to one prompt at these steps, by default at the first and the last that have any."""
    chosen_steps = set(map(int, steps.split(","))) if steps else None
    places = run.columns.places_of(Sample, TrainingGroup, steps=chosen_steps)
    by_step = dict[int, list[Sample]]()
    for event in _read_answers(run, places):
        if prompt_digest(event.prompt, event.ground_truth) == digest:
            answers = training_answers(event) if isinstance(event, TrainingGroup) else [event]
            by_step.setdefault(event.step, []).extend(answers)
    if not by_step:
        got = f"no answer to the prompt {short_repr(digest)}" + (f" at steps {steps}" if steps else "")
        raise Problems(Problem("prompt", got, "prompts lists those that were answered at several steps", "not-found"))
    order = sorted(by_step) if chosen_steps else sorted({min(by_step), max(by_step)})
    first, last = by_step[order[0]][0], by_step[order[-1]][0]
    differences = changed_words(first.response[:COMPARED], last.response[:COMPARED]) if len(order) > 1 else ()
    return Json({
        "digest": digest, "data_source": last.data_source, "prompt": last.prompt, "ground_truth": last.ground_truth,
        "steps": [{"step": step, "answers": [_answer_node(answer) for answer in by_step[step]]} for step in order],
        "changed": [{"what": what, "words": words} for what, words in differences],
    })  # fmt: skip


def _read_answers(run: ReadRun, places: Ints) -> Iterator[Sample | TrainingGroup]:
    """The events at these places, at most the last MOST_READ."""
    return run.columns.read(places[-MOST_READ:], Sample, TrainingGroup)


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


def _token_places(run: ReadRun) -> TokenPlaces:
    file = run.folder.path / NAME
    return read_now(run.services.read, TokenPlaces(run.inside(file))) if file.is_file() else TokenPlaces(file)


def _answer_node(answer: Sample, *, tokens: bool = False) -> dict[str, Any]:
    parts, advantage = (answer.parts, answer.advantage) if isinstance(answer, TrainingAnswer) else ({}, None)
    return {"text": answer.response, "score": answer.score, "parts": parts, "advantage": advantage,
            "episodes": answer.episodes, "tokens": tokens}  # fmt: skip


def _mean(scores: Iterable[float]) -> float | None:
    finite = [score for score in scores if math.isfinite(score)]
    return math.fsum(finite) / len(finite) if finite else None
