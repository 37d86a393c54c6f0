"""The policy under training, with its critic and reference model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean

import torch
from torch import Tensor

from launcher.algorithms import ops
from launcher.engines.torch.model.network import CausalLM, Network
from launcher.engines.torch.model.packing import Packed
from launcher.engines.torch.model.reference import Reference
from launcher.engines.torch.parallel import world
from launcher.engines.torch.parallel.strategy import Parallel
from launcher.engines.torch.train.batching import Limits, Rows, micro_batches, split_to_count
from launcher.engines.torch.train.clock import Clock
from launcher.engines.torch.train.measure import shows_distributions
from launcher.engines.torch.train.mismatch import Mismatch
from launcher.engines.torch.train.optimizer import TrainedNetwork, Update
from launcher.engines.torch.train.sums import Sums, join_metrics
from launcher.spec.algorithm import Algorithm, Batch, Largest, Loss, LossMetrics, Mean, Output

LossOf = Callable[[Batch, Packed], tuple[Loss, Tensor]]
"""From a micro-batch and its packing: its loss, and the [B, T] output that the loss was computed from."""


def join_updates(updates: Sequence[Update]) -> Update:
    """The updates of a step: means, largest values, and the first that was not finite."""
    norms = [update.weight_norms for update in updates if update.weight_norms is not None]
    return Update(
        join_metrics([update.metrics for update in updates], fmean),
        next((update.nonfinite_source for update in updates if update.nonfinite_source), ""),
        join_metrics([update.largest for update in updates], max),
        torch.cat(norms) if norms else None,
        updates[0].log_probs,  # an on-policy step has one update
    )


class Policy:
    """Computes rows of a batch in micro-batches; the result does not depend on their size."""

    def __init__(
        self, algorithm: Algorithm, actor: TrainedNetwork, limits: Limits, parallel: Parallel, *,
        temperature: float = 1.0, reference: Reference | None = None, critic: TrainedNetwork | None = None,
        critic_warmup: int = 0, dropout: bool = False, mismatch: Mismatch | None = None,
    ) -> None:  # fmt: skip
        assert isinstance(actor.network, CausalLM)
        self.algorithm, self.actor, self.critic, self.reference = algorithm, actor, critic, reference
        self.model: CausalLM = actor.network
        self.limits, self.parallel, self.critic_warmup, self.dropout = limits, parallel, critic_warmup, dropout
        self.mismatch = mismatch
        self.sampled = algorithm.sampled
        self.temperature = temperature if self.sampled else 1.0
        self.prefix = "train" if algorithm.data == "answers" else "actor"

    @torch.no_grad()
    def annotate(self, batch: Batch, clock: Clock, *, on_policy: bool) -> Batch:
        """Add the values computed before the update; an on-policy `old` is computed in the update itself."""
        parts = self._parts(batch)
        if self.sampled and (not on_policy or "old" in self.algorithm.needs):
            with clock("old_log_prob"):
                batch = replace(batch, old=self._compute_rows(self.model, batch, parts, self._logp))
        if self.reference:
            with clock("ref"), self.reference.on_device() as model:
                batch = replace(batch, reference=self._compute_rows(model, batch, parts, self._logp))
        if self.critic:
            with clock("values"), self.critic.on_device() as critic:
                batch = replace(batch, value=self._compute_rows(critic, batch, parts, Network.__call__))
        return batch

    def _logp(self, network: Network, packed: Packed) -> Tensor:
        return network(packed, self.temperature).logp

    def _parts(self, batch: Batch) -> list[Rows]:
        whole = self.algorithm.whole_groups
        parts = micro_batches(batch, self.limits, whole=whole, share=self.model.shares_prompts)
        if not self.parallel.needs_equal_microbatches:
            return parts
        max_parts = int(world.all_reduce_max(torch.tensor(float(len(parts)), device=self.model.device)).item())
        return split_to_count(parts, max_parts, batch.group.tolist() if whole else range(len(batch)))

    def _compute_rows(
        self, network: Network, batch: Batch, parts: Sequence[Rows], compute: Callable[[Network, Packed], Tensor]
    ) -> Tensor:
        """[B, T] of every row, computed part by part."""
        network.eval()
        output: Tensor | None = None
        for rows, _, packed in _packed_parts(network, batch, parts):
            values = compute(network, packed)
            if output is None:
                output = values.new_zeros(batch.tokens.shape)
            if rows:
                output[rows] = values
        assert output is not None
        return output * (batch.mask > 0)

    def update(self, batch: Batch, step: int, clock: Clock | None = None) -> Update:
        """One optimizer step. The sum of the parts' losses is divided once, by what all processes hold together."""
        parts, done, clock = self._parts(batch), Update({}), clock or Clock()
        if step > self.critic_warmup or not self.critic:
            units = self.algorithm.units(batch)
            with clock("update_actor"):
                done = self._optimize(self.actor, batch, parts, self._policy_loss, units, step, self.prefix)
        if self.critic:
            critic_args = self._value_loss, batch.mask.sum(), step, "critic"
            with clock("update_critic"), self.critic.on_device(learning=True):
                critic = self._optimize(self.critic, batch, parts, *critic_args)
            nonfinite = done.nonfinite_source or (critic.nonfinite_source and f"critic's {critic.nonfinite_source}")
            metrics, largest = {**done.metrics, **critic.metrics}, {**done.largest, **critic.largest}
            done = replace(done, metrics=metrics, largest=largest, nonfinite_source=nonfinite)
        return done

    def _optimize(
        self, trained: TrainedNetwork, batch: Batch, parts: Sequence[Rows], loss_of: LossOf, units: Tensor, step: int,
        name: str,
    ) -> Update:  # fmt: skip
        trained.network.prepare_update(dropout=self.dropout)
        divisor = world.all_reduce_sum(units.double()).item()
        sums = Sums(batch.mask.device)
        finite = {what: torch.ones((), dtype=torch.bool, device=batch.mask.device) for what in _CHECKED_VALUES}
        on_policy = self.sampled and name != "critic" and batch.old is None
        log_probs = batch.mask.new_zeros(batch.mask.shape) if on_policy else None
        for rows, part, packed in _packed_parts(trained.network, batch, parts):
            (loss, metrics), computed = loss_of(part, packed)
            if not rows:
                loss = loss * 0
            ((loss / divisor) if divisor else loss * 0).backward()
            if rows:
                sums.add(metrics)
                if log_probs is not None:
                    log_probs[rows] = computed.detach().to(log_probs.dtype)
            output_name = "value" if name == "critic" else "log-probability"
            for what, values in (*_loss_inputs(part), (output_name, computed), ("loss", loss)):
                finite[what] &= torch.isfinite(values).all()
        with_norms = name != "critic" and shows_distributions(step)
        done = trained.optimizer_step(name, step, finite, idle=not divisor, with_norms=with_norms)
        means, largest = sums.reduced()
        return replace(done, metrics={**means, **done.metrics}, largest=largest, log_probs=log_probs)

    def _policy_loss(self, part: Batch, packed: Packed) -> tuple[Loss, Tensor]:
        logp, entropy = self.model(packed, self.temperature, self.sampled)
        if self.sampled and part.old is None:  # on-policy: these weights sampled the answers
            part = replace(part, old=logp.detach())
        if self.mismatch and part.rollout is not None:
            part = self.mismatch.record_and_weight(part)
        loss, metrics = self.algorithm.loss(Output(logp, entropy), part)
        if self.sampled:
            metrics = {
                **metrics, "actor/loss": Mean(loss.detach(), self.algorithm.units(part)),
                "actor/entropy": Mean((entropy.detach() * part.mask).sum(), part.mask.sum()),
            }  # fmt: skip
        if self.sampled or part.reference is not None:
            metrics = {**metrics, **_log_prob_metrics(logp.detach(), part)}
        return (loss, metrics), logp

    def _value_loss(self, part: Batch, packed: Packed) -> tuple[Loss, Tensor]:
        assert self.critic
        value = self.critic.network(packed)
        return self.algorithm.value_loss(value, part), value

    @torch.no_grad()
    def heldout_losses(
        self, batch: Batch, groups: Sequence[Sequence[int]]
    ) -> tuple[dict[str, tuple[float, float]], list[float]]:
        """Sum and count of the loss and of the algorithm's metrics over this process's held-out rows, and the loss
        summed over each of the `groups`: the sequences of one row of the data, by their indices in `batch`."""
        parts = self._parts(batch)
        if self.reference:
            with self.reference.on_device() as model:
                batch = replace(batch, reference=self._compute_rows(model, batch, parts, self._logp))
        batch = replace(batch, old=self._compute_rows(self.model, batch, parts, self._logp))
        sums, losses = Sums(batch.mask.device), list[Tensor]()
        for rows in groups:
            part = batch.rows(list(rows))
            loss, metrics = self.algorithm.loss(Output(part.old), part)
            sums.add({**metrics, "loss": Mean(loss, self.algorithm.units(part))})
            losses.append(loss)
        row_losses: list[float] = torch.stack(losses).tolist()
        return {what: (x[0].item(), x[1].item()) for what, x in sums.means.items()}, row_losses


_CHECKED_VALUES = ("reference", "old log-probability", "value", "advantage", "log-probability", "loss")


def _loss_inputs(part: Batch) -> list[tuple[str, Tensor]]:
    """Inputs of the loss from before the update, by the names used in events."""
    inputs = {
        "reference": part.reference, "old log-probability": part.old, "value": part.value, "advantage": part.advantage,
    }  # fmt: skip
    return [(name, values) for name, values in inputs.items() if values is not None]


def _with_predicted_token(part: Batch) -> Batch:
    """The rows, with at least one predicted token: a network needs an input."""
    if (part.mask[:, 1:] > 0).any():
        return part
    mask = part.mask.clone()
    mask[0, 1] = 1
    return replace(part, mask=mask)


def _masked_row(batch: Batch) -> Batch:
    """A row with a zero mask, for a process that has fewer micro-batches than others."""
    row = batch.rows([0])
    return replace(row, mask=torch.zeros_like(row.mask))


def _packed_parts(network: Network, batch: Batch, parts: Sequence[Rows]) -> list[tuple[Rows, Batch, Packed]]:
    """Each part's rows, batch and packing; all are packed before the first is computed, as packing synchronises with
    the GPU."""
    batches = [(rows, batch.rows(rows) if rows else _masked_row(batch)) for rows in parts]
    return [(rows, part, network.pack(_with_predicted_token(part))) for rows, part in batches]


def _log_prob_metrics(logp: Tensor, part: Batch) -> LossMetrics:
    """Mean log-probabilities of a micro-batch, of tokens and of whole sequences, and the distance from the reference.

    A sequence's log-ratio is the sum over its tokens, so that of a long answer is larger.
    """
    tokens, answers = part.mask.sum(), ops.count_answers(part.mask)
    current = (logp * part.mask).sum(-1)  # [B]
    metrics: dict[str, Mean | Largest] = {
        "actor/log_prob_mean": Mean(current.sum(), tokens),
        "actor/seq_log_prob_mean": Mean(current.sum(), answers),
    }
    if part.reference is not None:
        reference = (part.reference * part.mask).sum(-1)  # [B]
        log_ratio = current - reference
        metrics |= {
            "ref/log_prob_mean": Mean(reference.sum(), tokens),
            "ref/seq_log_prob_mean": Mean(reference.sum(), answers),
            "actor/ref_log_ratio_mean": Mean(log_ratio.sum(), answers),
            "actor/ref_log_ratio_max": Largest(ops.largest(log_ratio.abs(), part.mask.sum(-1) > 0)),
        }
    return metrics
