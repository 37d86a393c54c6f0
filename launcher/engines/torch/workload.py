"""Upper limits of what one process computes at a time: rows, tokens, prompts, answers."""

from __future__ import annotations

from pathlib import Path

from launcher.engines.torch.model.blocks import cache_capacity, worth_sharing
from launcher.models import config, size, weights
from launcher.models.pretrained import Pretrained
from launcher.rewards.model import RewardModel
from launcher.spec.model import Model
from launcher.spec.run import RunSpec

SLOT = {"answers": 16, "pairs": 40, "prompts": 72, "mixed": 72}
"""Bytes of a batch per row and token, padding included: tokens, mask and the algorithm's fields."""


class Workload:
    """Work of one process, with all prompts and answers of maximum length."""

    def __init__(self, run: RunSpec) -> None:
        data, algorithm, sampler = run.data, run.algorithm, run.sampler
        self.prompt, self.response = run.longest_parts
        self.longest = self.prompt + self.response
        update, per_prompt = run.sequences_per_update, run.sequences_per_prompt
        self.rows, self.prompts = _micro_batch_size(run, update, per_prompt)
        """Rows of a micro-batch, and the prompts packed for them: one per row, or one for several answers to it."""
        self.shares_prompts = self.prompts < self.rows
        self.tokens = self.prompts * self.prompt + self.rows * self.response
        """Tokens of a micro-batch, packed."""
        self.predicted = self.rows * self.response
        self.parts = -(-update // self.rows)
        """Micro-batches of an update."""
        batch = data.train_batch_size // run.hardware.processes  # prompts or demonstrations
        sampled = min(batch, max(sampler.max_num_seqs // sampler.n, 1)) if algorithm.sampled else 0
        # pairs are compared, not answered: hardly any dataset gives their prompts a ground truth
        held_out = 0 if algorithm.data == "pairs" else _held_out(run)
        validated = min(held_out, max(sampler.max_num_seqs // sampler.val_n, 1))
        many_turns = run.environment.several_turns  # each episode then has its own prompt
        self.written = max(sampled * sampler.n, validated * sampler.val_n)
        """Answers decoded at the same time; 0 where none are sampled."""
        self.waiting = self.written if many_turns else 0
        """Episodes whose keys and values are kept between their turns."""
        self.prefilled = self.written if many_turns else max(sampled, validated)
        """Prompts prefilled at the same time."""
        self.cached_tokens = cache_capacity(self.prompt)
        """KV cache slots of each answer when the last token is decoded."""
        while self.cached_tokens < self.longest:
            self.cached_tokens = cache_capacity(self.cached_tokens + 1)
        self.batch_bytes = batch * per_prompt * self.longest * SLOT[algorithm.data]
        self.file_bytes = _file_bytes(run.model)
        """Bytes of the weights' file that are in memory beside the weights."""
        self.reward_bytes = _reward_bytes(run)
        self.sampled = algorithm.sampled
        self.scored_before = algorithm.sampled and (not run.on_policy or "old" in algorithm.needs)
        """Whether log-probabilities are computed before the update."""


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
