"""Direct Preference Optimization (arXiv:2305.18290, eq. 7): learn from pairs, without a reward model.

Its relatives differ in one function of the margin h, the difference between the two answers' log-ratios.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from launcher.algorithms import ops
from launcher.core.problems import Problem
from launcher.core.settings import Positive, ReadOnlyWith, settings
from launcher.spec.algorithm import Algorithm, Batch, Loss, Mean, Need, Output

if TYPE_CHECKING:
    from torch import Tensor

LOWEST, HIGHEST = 1e-3, 10
"""Bounds of beta: below, nothing keeps the policy near the reference model; above, the policy stays there."""
Smoothing = Annotated[float, Field(ge=0, lt=0.5)]


def sigmoid(margin: Tensor, beta: float, wrong: float) -> Tensor:
    """[P] eq. 7; `wrong` is the assumed fraction of pairs with swapped labels (cDPO)."""
    loss = -(1 - wrong) * ops.log_sigmoid(beta * margin)
    return loss - wrong * ops.log_sigmoid(-beta * margin) if wrong else loss


def hinge(margin: Tensor, beta: float, _: float) -> Tensor:
    """[P] SLiC (arXiv:2305.10425): 0 for pairs with a large enough margin."""
    return (1 - beta * margin).clamp(min=0)


def ipo(margin: Tensor, beta: float, _: float) -> Tensor:
    """[P] IPO (arXiv:2310.12036, eq. 17): regresses the margin to 1 / (2 beta)."""
    return (margin - 1 / (2 * beta)).square()


LOSSES: Mapping[str, Callable[[Tensor, float, float], Tensor]] = {"sigmoid": sigmoid, "hinge": hinge, "ipo": ipo}


@settings
class DPO(Algorithm):
    """Direct Preference Optimization: learns from preference pairs, without a reward model.

    The two answers of a pair have one `group`, and `preference` 1 (chosen) and -1 (rejected).
    """

    beta: Positive = 0.1
    """Strength of the KL constraint towards the reference model: small values let the policy move further from it."""
    loss_type: Literal["sigmoid", "hinge", "ipo"] = "sigmoid"
    """`sigmoid` increases the margin without limit, `hinge` (arXiv:2305.10425) stops at a margin of 1, `ipo`
    (arXiv:2310.12036) regresses the margin to a finite target, which resists overfitting."""
    label_smoothing: Annotated[Smoothing, ReadOnlyWith("loss_type", "sigmoid", fix="algorithm.loss_type=sigmoid")] = 0.0
    """With sigmoid: the assumed fraction of pairs with swapped labels (cDPO)."""
    length_normalised: Annotated[bool, ReadOnlyWith("loss_type", "ipo", fix="algorithm.loss_type=ipo")] = False
    """With ipo: use the mean log-ratio of an answer's tokens instead of the sum, so that long answers have no larger
    weight."""

    needs: ClassVar[frozenset[Need]] = frozenset({"reference"})
    data = "pairs"
    whole_groups = True
    usual_lr = 5e-7

    def doubts(self) -> Iterator[Problem]:
        beta = self.beta
        if beta > HIGHEST:
            got = f"{beta:g} holds the policy to the reference model, so that pairs hardly move it"
            yield Problem("algorithm.beta", got, "use 0.1")
        if beta < LOWEST:
            got = f"{beta:g} lets the policy go as far from the reference model as it can, so that it may be ruined"
            yield Problem("algorithm.beta", got, "use 0.1")

    def loss(self, new: Output, batch: Batch) -> Loss:
        weight = ops.per_sequence_weights(batch.mask) if self.length_normalised else batch.mask
        log_ratio = ((new.logp - batch.reference) * weight).sum(-1)  # [B] log-ratio of whole answers
        index = ops.group_index(batch.group)
        margin = ops.group_sum(log_ratio * batch.preference, index)  # [P]
        loss = LOSSES[self.loss_type](margin, self.beta, self.label_smoothing).sum()
        reward, pairs = self.beta * log_ratio.detach(), self.units(batch)
        return loss, {
            "actor/dpo_loss": Mean(loss.detach(), pairs),
            "rewards/chosen": Mean(reward[batch.preference > 0].sum(), pairs),
            "rewards/rejected": Mean(reward[batch.preference < 0].sum(), pairs),
            "rewards/margins": Mean(self.beta * margin.detach().sum(), pairs),
            "rewards/accuracies": Mean((margin > 0).sum(), pairs),
        }

    def units(self, batch: Batch) -> Tensor:
        """[] pairs."""
        return (batch.preference > 0).sum()
