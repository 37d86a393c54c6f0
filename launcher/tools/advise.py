"""Which algorithm fits what a person has: the answers to three questions become the words to run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, get_args

from launcher.config.compose import groups
from launcher.core.problems import Problem, Problems, short_repr
from launcher.data.files import Files
from launcher.data.known_datasets import number
from launcher.data.reader import FORMS, read_rows
from launcher.data.rows import RawRow
from launcher.spec.data import RefusedRow, Row
from launcher.spec.reward import MODEL_STYLE
from launcher.spec.routes import ROUTES, route

Have = Literal["answers", "pairs", "prompts", "mixed"]
Compute = Literal["little", "much"]

OWN_REWARD = "reward.py"
LOOKED_AT = 100  # rows of a file


@dataclass(frozen=True)
class AlgorithmAdvice:
    """An algorithm, why it fits, and the words that run it."""

    algorithm: str
    why: str
    words: tuple[str, ...]


def inspect_rows(file: str) -> Have:
    """What the first rows of a file are. Raises `Problems` where they are neither."""
    rows = list(islice(read_rows(file), LOOKED_AT))
    found = [row for row in rows if isinstance(row, RawRow)]
    if not found:
        reason = f": {rows[0].reason}" if rows and isinstance(rows[0], RefusedRow) else ""
        raise Problems(Problem(file, f"holds no row that can be read{reason}", f"use {FORMS}"))
    paired = sum(any(row.values.get(key) is not None for key in ("chosen", "rejected")) for row in found)
    if paired:
        return "pairs" if paired == len(found) else "mixed"
    marks = ("reward_model", "ground_truth", "self_play")
    graded = any(row.values.get(key) is not None for row in found for key in marks)
    kinds = next((kinds for row in found if (kinds := list(_fitting(row)))), [])
    if not kinds:
        raise Problems(Problem(found[0].where, "is neither a demonstration, a pair nor a prompt, with the keys"
                     f" {', '.join(sorted(found[0].values))}", "use prompt and response", "bad-row"))  # fmt: skip
    return "prompts" if graded or "answers" not in kinds else "answers"


def _fitting(row: RawRow) -> Iterator[Have]:
    for kind in ("answers", "prompts"):
        if not isinstance(Files().row(row, kind), RefusedRow):
            yield kind


def reward_for(file: str) -> tuple[str, ...]:
    """The words that choose a reward for the first prompts of a file; a function of one's own where they have no
    ground truth, or ask for a model."""
    found = [row for row in islice(read_rows(file), LOOKED_AT) if isinstance(row, RawRow)]
    rows = [row for each in found if isinstance(row := Files().row(each, "prompts"), Row)]
    truths = [row.ground_truth for row in rows if row.ground_truth is not None]
    if not truths or any(row.style == MODEL_STYLE for row in rows):
        return ("reward=python", f"reward.path={OWN_REWARD}")
    if all(route(row.data_source, ROUTES) for row in rows):
        return ("reward=auto",)
    numbers = all(number(text) is not None for text in truths)
    return ("reward=gsm8k", "reward.method=flexible") if numbers else ("reward=exact",)


def advise(
    have: Have, compute: Compute, model: str, files: str, device: str = "cpu", reward: Sequence[str] = ()
) -> AlgorithmAdvice:
    """First demonstrations, then preferences, then rewards.

    Prompts without answers need a reward: with much compute PPO, whose critic is a second model to train; with
    little GRPO, which compares answers instead.
    """
    for name, value, known in (("have", have, get_args(Have)), ("compute", compute, get_args(Compute))):
        if value not in known:
            raise Problems(Problem(name, f"got {short_repr(value)}", f"use {', '.join(known)}"))
    chosen = (f"model={model}",) if model in groups()["model"] else ("model=hf", f"model.path={model}")
    common = (*chosen, "data=files", f"data.train_files={files}")
    common += () if device == "cpu" else (f"hardware={device}",)
    if have == "answers":
        why = "answers to imitate: supervised fine-tuning comes first, whatever follows"
        return AlgorithmAdvice("sft", why, ("algorithm=sft", *common))
    if have == "pairs":
        why = "chosen and rejected answers: DPO learns from them without a reward model"
        return AlgorithmAdvice("dpo", why, ("algorithm=dpo", *common))
    if have == "mixed":
        why = "pairs and prompts in one file: the pairs teach as in DPO, the prompts as in GSPO"
        return AlgorithmAdvice("gspo_selfplay", why, ("algorithm=gspo_selfplay", *common, *reward))
    own = f"; the reward is yours to write, in {OWN_REWARD}" if f"reward.path={OWN_REWARD}" in reward else ""
    if compute == "much":
        why = f"prompts with a reward and much compute: PPO trains a critic beside the policy{own}"
        return AlgorithmAdvice("ppo", why, ("algorithm=ppo", *common, *reward))
    why = f"prompts with a reward and little compute: GRPO compares answers and needs no critic{own}"
    return AlgorithmAdvice("grpo", why, ("algorithm=grpo", *common, *reward))
