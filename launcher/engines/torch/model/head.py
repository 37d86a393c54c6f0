"""Log-probability and entropy of tokens, out of the last hidden states, without keeping the logits.

The vocabulary is the largest dimension of a language model. Logits are computed for some rows at a time; what the
backward pass needs of them is kept where it is small, and computed again where it is not.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from launcher.engines.torch.model.blocks import KEPT, LOGITS


class TokenScores(NamedTuple):
    """Scores of each predicted token."""

    logp: Tensor  # [M] log-probability
    entropy: Tensor  # [M] entropy of its distribution, in nats; 0 where not requested


def token_scores(
    hidden: Tensor, weight: Tensor | None, target: Tensor, temperature: float = 1.0, *, entropy: bool = True
) -> TokenScores:
    """Scores of `target` [M] after the `hidden` states [M, H], by the output layer's `weight` [V, H].

    With None as weight, `hidden` are ready logits [M, V], of a model whose output layer is more than a matrix.
    """
    return TokenScores(*_Scores.apply(hidden, weight, target, temperature, entropy, torch.is_grad_enabled()))


class _Scores(torch.autograd.Function):
    """With z the logits over the temperature, p = softmax(z): d logp / dz = onehot - p, dH / dz = -p (log p + H)."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor | None, target: Tensor, temperature: float, wants_entropy: bool,
        learning: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        vocabulary = hidden.shape[1] if weight is None else weight.shape[0]
        ctx.rows, ctx.temperature = max(LOGITS // vocabulary, 1), temperature
        ctx.kept, ctx.dtype = {}, _computed_in(hidden)
        ctx.set_materialize_grads(False)
        matrix = None if weight is None else weight.to(ctx.dtype)
        keep = learning and hidden.shape[0] * vocabulary <= KEPT
        logp, entropy = [], []
        parts = zip(hidden.split(ctx.rows), target.split(ctx.rows), strict=True)
        with torch.autocast(hidden.device.type, enabled=False):  # it would compute the entropy in bfloat16
            for number, (part, token) in enumerate(parts):
                p, part_logp, part_entropy = _softmax(_logits(part, matrix, temperature), token, wants_entropy)
                logp.append(part_logp)
                entropy.append(part_entropy)
                if keep:
                    ctx.kept[number] = p
        scores = torch.cat(logp), torch.cat(entropy)
        ctx.save_for_backward(hidden, weight, target, scores[1])
        return scores

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
        hidden, weight, target, entropy = ctx.saved_tensors
        grad_logp, grad_entropy = torch.zeros_like(entropy) if grads[0] is None else grads[0], grads[1]
        hidden_grad = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        exact = torch.float64 if ctx.dtype == torch.float64 else torch.float32  # sums of many rounded parts drift
        weight_grad = torch.zeros_like(weight, dtype=exact) if ctx.needs_input_grad[1] else None
        matrix = None if weight is None else weight.to(ctx.dtype)
        for number, start in enumerate(range(0, len(target), ctx.rows)):
            rows = slice(start, start + ctx.rows)
            p = ctx.kept.pop(number, None)  # overwritten below; a second backward pass computes it again
            if p is None:
                p = _softmax(_logits(hidden[rows], matrix, ctx.temperature), target[rows], False)[0]
            part_entropy = None if grad_entropy is None else grad_entropy[rows]
            z = _logits_grad(p, target[rows], grad_logp[rows], part_entropy, entropy[rows])
            z = (z if ctx.temperature == 1.0 else z.div_(ctx.temperature)).to(ctx.dtype)
            if hidden_grad is not None:
                hidden_grad[rows] = z if matrix is None else z @ matrix
            if weight_grad is not None:
                _add_product(weight_grad, z.T, hidden[rows].to(ctx.dtype))
        return hidden_grad, weight_grad if weight_grad is None else weight_grad.to(weight.dtype), None, None, None, None


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    if total.dtype == a.dtype:
        total.addmm_(a, b)  # without the product in memory
    else:
        total += a @ b


def _computed_in(hidden: Tensor) -> torch.dtype:
    """Number format of the matrix product: autocast's where it is enabled, which it is not in the backward pass."""
    kind = hidden.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype


def _logits(hidden: Tensor, matrix: Tensor | None, temperature: float) -> Tensor:
    """[M, V] in float32 or wider, in newly allocated memory that may be overwritten."""
    logits = hidden if matrix is None else linear(hidden.to(matrix.dtype), matrix)
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    elif matrix is None:
        logits = logits.clone()
    return logits if temperature == 1.0 else logits.div_(temperature)


def _softmax(z: Tensor, token: Tensor, wants_entropy: bool) -> tuple[Tensor, Tensor, Tensor]:
    """[M, V] probabilities, [M] log-probability of `token`, [M] entropy. Overwrites `z`."""
    logp = z.log_softmax(-1)
    picked = logp.gather(-1, token[:, None])[:, 0]
    if not wants_entropy:
        return logp.exp_(), picked, torch.zeros_like(picked)
    p = logp.exp()
    logp.clamp_(min=torch.finfo(logp.dtype).min)  # what has no probability has no share: 0 * -inf would be NaN
    return p, picked, -torch.linalg.vecdot(p, logp)


def _logits_grad(p: Tensor, token: Tensor, grad_logp: Tensor, grad_entropy: Tensor | None, entropy: Tensor) -> Tensor:
    """[M, V] gradient of z. Overwrites `p`."""
    spread = None
    if grad_entropy is not None:
        spread = (torch.special.entr(p) - p * entropy[:, None]).mul_(grad_entropy[:, None])
    grad = p.mul_(-grad_logp[:, None]).scatter_add_(-1, token[:, None], grad_logp[:, None])
    return grad if spread is None else grad.add_(spread)
