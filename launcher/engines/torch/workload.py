"""Upper limits of what one process computes at a time: rows, tokens, prompts, answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from launcher.engines.torch.model.blocks import cache_capacity, worth_sharing
from launcher.models import config, size, weights
from launcher.models.pretrained import Pretrained
from launcher.rewards.model import RewardModel
from launcher.spec.model import Model
from launcher.spec.run import RunSpec

SLOT = {"answers": 16, "pairs": 40, "prompts": 72, "mixed": 72}
"""Bytes of a batch per row and token, padding included: tokens, mask and the algorithm's fields."""


@dataclass(frozen=True)
class Workload:
    """Work of one process, with all prompts and answers of maximum length."""

    prompt: int
    response: int
    rows: int
    """Rows of a micro-batch."""
    prompts: int
    """Prompts packed for them: one per row, or one for several answers to it."""
    parts: int
    """Micro-batches of an update."""
    written: int
    """Answers decoded at the same time; 0 where none are sampled."""
    waiting: int
    """Episodes whose keys and values are kept between their turns."""
    prefilled: int
    """Prompts prefilled at the same time."""
    batch_bytes: int
    file_bytes: int
    """Bytes of the weights' file that are in memory beside the weights."""
    reward_bytes: int
    sampled: bool
    scored_before: bool
    """Whether log-probabilities are computed before the update."""

    @property
    def longest(self) -> int:
        return self.prompt + self.response

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch, packed."""
        return self.prompts * self.prompt + self.rows * self.response

    @property
    def predicted(self) -> int:
        return self.rows * self.response

    @property
    def shares_prompts(self) -> bool:
        return self.prompts < self.rows

    @property
    def answered(self) -> bool:
        return self.written > 0

    @property
    def cached_tokens(self) -> int:
        """KV cache slots of each answer when the last token is decoded."""
        capacity = cache_capacity(self.prompt)
        while capacity < self.longest:
            capacity = cache_capacity(capacity + 1)
        return capacity

    @classmethod
    def from_run(cls, run: RunSpec) -> Workload:
        data, algorithm = run.data, run.algorithm
        prompt, response = run.longest_parts
        batch = data.train_batch_size // run.hardware.processes  # prompts or demonstrations
        update, per_prompt = run.sequences_per_update, run.sequences_per_prompt
        rows, prompts = _micro_batch_size(run, update, per_prompt)
        sampled = min(batch, max(run.sampler.max_num_seqs // run.sampler.n, 1)) if algorithm.sampled else 0
        # pairs are compared, not answered: hardly any dataset gives their prompts a ground truth
        held_out = 0 if algorithm.data == "pairs" else _held_out(run)
        validated = min(held_out, max(run.sampler.max_num_seqs // run.sampler.val_n, 1))
        many_turns = run.environment.several_turns  # each episode then has its own prompt
        written = max(sampled * run.sampler.n, validated * run.sampler.val_n)
        return cls(
            prompt=prompt, response=response, rows=rows, prompts=prompts, parts=-(-update // rows), written=written,
            waiting=written if many_turns else 0, prefilled=written if many_turns else max(sampled, validated),
            batch_bytes=batch * per_prompt * (prompt + response) * SLOT[algorithm.data],
            file_bytes=_file_bytes(run.model), reward_bytes=_reward_bytes(run), sampled=algorithm.sampled,
            scored_before=algorithm.sampled and (not run.on_policy or "old" in algorithm.needs),
        )  # fmt: skip


def _micro_batch_size(run: RunSpec, rows: int, each: int) -> tuple[int, int]:
    """Rows of the largest micro-batch of `rows`, `each` for one prompt, and the prompts that are packed for them."""
    max_tokens, (prompt, response) = run.trainer.max_tokens_per_gpu, run.longest_parts
    family = 1 if run.model.dtype == "float64" or not worth_sharing(prompt, each, each * (prompt + response)) else each
    if max_tokens is None:
        rows = min(rows, run.micro_batch_rows)
    elif family == 1:
        rows = min(rows, max(max_tokens // (prompt + response), 1))
    else:
        families, leftover = divmod(max_tokens, prompt + family * response)
        rows = min(rows, families * family + max(leftover - prompt, 0) // response)
    if rows % family == 0 or family % rows == 0:
        return rows, -(-rows // family)
    return rows, min(rows, (rows + family - 2) // family + 1)  # the first and the last may be parts of a family


def _held_out(run: RunSpec) -> int:
    """Maximum number of held-out prompts that a process answers at a time."""
    rows = run.data.held_out
    per_process = run.data.val_batch_size if rows is None else -(-rows // run.hardware.processes)
    return min(run.data.val_batch_size, per_process)


def _file_bytes(model: Model) -> int:
    """A file is mapped into memory; where its weights are cast, both lie there until it is closed.

    Weights that are not here are taken to be stored in bfloat16, as most are.
    """
    if not isinstance(model, Pretrained) or model.shape is None:
        return 0
    count = size.parameters(model.shape)
    files = weights.sizes(model.folder) or [count * size.BFLOAT16]
    return 0 if round(sum(files) / count) == size.BYTES[model.dtype] else max(files)


def _reward_bytes(run: RunSpec) -> int:
    """Weights of the reward models, in float32 as they are loaded."""
    total = 0
    for leaf in run.reward.leaves():
        if isinstance(leaf, RewardModel):
            node = config.read(Path(leaf.path).expanduser())
            shape = config.architecture(node) if node else None
            total += size.parameters(shape) * size.FLOAT32 if shape else 0
    return total
