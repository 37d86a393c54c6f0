"""What must hold of every algorithm: how a step is cut up, and where its rows stand, changes nothing."""

from __future__ import annotations

import math
import threading
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from launcher.algorithms.dapo import DAPO
from launcher.algorithms.dpo import DPO
from launcher.algorithms.grpo import GRPO
from launcher.algorithms.gspo import GSPO
from launcher.algorithms.ppo import PPO
from launcher.core.settings import from_node
from launcher.spec.algorithm import Algorithm, AlgorithmState, Batch, Largest, Mean, Output

CLOSE = 1e-12
Pulled = tuple[Tensor, Tensor, dict[str, tuple[float, float]]]


def assert_same(one: Pulled, other: Pulled) -> None:
    assert (one[0] - other[0]).abs() <= CLOSE
    assert (one[1] - other[1]).abs().max() <= CLOSE
    assert one[1].abs().max() > 0, "nothing pulls, so nothing is compared"
    assert one[2].keys() == other[2].keys()
    for metric, value in one[2].items():
        assert value == pytest.approx(other[2][metric], rel=CLOSE, abs=CLOSE), metric


def in_groups(group: Tensor, count: int) -> list[Tensor]:
    """Rows in `count` parts that cut no group."""
    index = group.unique(return_inverse=True)[1]
    return [torch.nonzero(index % count == part)[:, 0] for part in range(count)]


# ---- how a step is cut up


class Together:
    """`total` of processes that are threads here: each gives its part, and each gets the sum."""

    def __init__(self, count: int) -> None:
        self.barrier, self.given, self.count = threading.Barrier(count, timeout=600), dict[int, Tensor](), count

    def total(self, process: int, x: Tensor) -> Tensor:
        self.given[process] = x
        self.barrier.wait()  # all have given
        summed = sum(self.given[i] for i in range(self.count))
        self.barrier.wait()  # all have taken
        return summed


def prepared_apart(
    algorithm: Algorithm, batch: Batch, state: AlgorithmState, parts: list[Tensor]
) -> list[tuple[Batch, AlgorithmState]]:
    together, found = Together(len(parts)), dict[int, tuple[Batch, AlgorithmState]]()

    def process(i: int) -> None:
        found[i] = algorithm.prepare(batch.rows(parts[i]), state, lambda x: together.total(i, x))

    threads = [threading.Thread(target=process, args=[i]) for i in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(parts), "a process asked for fewer sums than another"
    return [found[i] for i in range(len(parts))]


def test_processes_and_micro_batches_do_not_matter(algorithm, drawn, pulled) -> None:
    """Two steps, so that the state of the first is used. Each process holds whole groups; the ninth holds none."""
    state: AlgorithmState = {}
    told_apart: AlgorithmState = {}
    for seed in range(2):
        new, batch = drawn(algorithm, seed)
        parts = in_groups(batch.group, 9)
        made, state = algorithm.prepare(batch, state)
        found = prepared_apart(algorithm, batch, told_apart, parts)
        for (mine, output), part in zip(found, parts, strict=True):
            assert output == pytest.approx(state, rel=CLOSE)
            for field in ("mask", "reward", "advantage", "target"):
                expected = getattr(made, field)
                if expected is not None:
                    assert torch.allclose(getattr(mine, field), expected[part], rtol=0, atol=CLOSE), field
        told_apart = found[0][1]
        micro = parts if algorithm.whole_groups else list(torch.arange(len(made)).chunk(8))
        for cut in (parts, micro):
            assert_same(pulled(algorithm, new, made, cut), pulled(algorithm, new, made))


# ---- where rows and columns stand


def test_padding_does_not_matter(algorithm, drawn, pulled) -> None:
    new, batch = drawn(algorithm)

    def wider(x: Any, fill: float = 0.0) -> Any:
        grid = torch.is_tensor(x) and x.ndim == 2
        return torch.nn.functional.pad(x, (0, 5), value=fill) if grid else x

    wide = Batch(**{f.name: wider(getattr(batch, f.name)) for f in fields(batch)})
    wide = replace(wide, **{name: wider(getattr(batch, name), -2.5) for name in ("old", "reference", "value")})
    loss, gradient, seen = pulled(algorithm, wider(new), algorithm.prepare(wide, {})[0])
    columns = new.shape[1]
    assert (gradient[:, columns:] == 0).all()
    assert_same((loss, gradient[:, :columns], seen), pulled(algorithm, new, algorithm.prepare(batch, {})[0]))


def test_the_order_of_rows_does_not_matter(algorithm, drawn, pulled) -> None:
    new, batch = drawn(algorithm)
    order = torch.randperm(len(batch))
    loss, gradient, seen = pulled(algorithm, new, algorithm.prepare(batch, {})[0])
    found = pulled(algorithm, new[order], algorithm.prepare(batch.rows(order), {})[0])
    assert_same(found, (loss, gradient[order], seen))


def test_masked_tokens_pull_nowhere_and_what_is_reported_carries_no_gradient(algorithm, drawn) -> None:
    new, batch = drawn(algorithm)
    made, _ = algorithm.prepare(batch, {})
    at = new.clone().requires_grad_()
    loss, seen = algorithm.loss(Output(at, at.square()), made)
    assert seen and all(isinstance(metric, Mean | Largest) for metric in seen.values())
    assert not any(value.requires_grad for metric in seen.values() for value in metric)
    loss.backward()
    assert at.grad is not None
    assert torch.isfinite(at.grad).all()
    assert (at.grad[made.mask == 0] == 0).all()
    assert (at.grad[made.mask > 0] != 0).any()


# ---- edges


def test_an_answer_without_tokens_is_not_there(algorithm, drawn, pulled) -> None:
    new, batch = drawn(algorithm)
    gone = torch.nonzero(batch.preference == 0)[:, 0][:2] if algorithm.data == "mixed" else torch.tensor([0, 3])
    batch.mask[gone] = 0
    made, _ = algorithm.prepare(batch, {})
    loss, gradient, seen = pulled(algorithm, new, made)
    assert (gradient[gone] == 0).all()
    left = torch.ones(len(batch), dtype=torch.bool).index_fill(0, gone, False)
    if algorithm.data == "pairs":  # a pair stays a pair, whose empty answer gained nothing
        assert torch.isfinite(loss)
    else:
        assert_same((loss, gradient[left], seen), pulled(algorithm, new[left], made.rows(left)))


def test_a_micro_batch_without_tokens_is_zero(algorithm, drawn) -> None:
    new, batch = drawn(algorithm)
    rows = torch.nonzero(batch.preference == 0)[:, 0] if algorithm.data == "mixed" else torch.arange(len(batch))
    none = replace(batch, mask=0 * batch.mask).rows(rows)
    made, state = algorithm.prepare(none, {})
    assert all(value == value for value in state.values())  # no NaN
    loss, seen = algorithm.loss(Output(0 * new[rows], 0 * new[rows]), made)
    means = [metric for metric in seen.values() if isinstance(metric, Mean)]
    assert means and all(torch.isfinite(mean.total) for mean in means)
    assert all(metric.value == -torch.inf for metric in seen.values() if isinstance(metric, Largest))  # of nothing
    if algorithm.data != "pairs":
        assert (loss.item(), algorithm.units(made).item()) == (0.0, 0.0)


# ---- policy gradient


def test_importance_weighs_each_tokens_policy_loss_and_nothing_else(clipping, drawn) -> None:
    """Outside all clips. The pull to the reference and the bonus speak of the policy as it is, not of who sampled."""
    _, batch = drawn(clipping)
    made, _ = clipping.prepare(batch, {})
    made = made.rows(made.preference == 0) if clipping.data == "mixed" else made
    at = made.old.clone().add_(0.1).requires_grad_()
    weight = torch.arange(at.numel(), dtype=torch.float64).view(at.shape) / at.numel()

    def pull(importance: Tensor, advantage: Tensor) -> Tensor:
        weighed = replace(made, importance=importance, advantage=advantage)
        return torch.autograd.grad(clipping.loss(Output(at, at.square()), weighed)[0], at)[0]

    one, nothing = torch.ones_like(weight), torch.zeros_like(made.advantage)
    other = pull(one, nothing)
    assert torch.equal(pull(weight, nothing), other)
    plain = pull(one, made.advantage) - other
    assert plain.abs().sum() > 0
    torch.testing.assert_close(pull(weight, made.advantage) - other, plain * weight)


def test_at_ratio_one_it_is_reinforce(clipping, drawn) -> None:
    """Without KL and bonus the gradient of a token's log-probability is -A, weighed as the tokens add up."""
    price = "kl_loss_coef" if isinstance(clipping, GRPO) else "kl_coef"
    algorithm: Any = replace(clipping, entropy_coeff=0.0, **{price: 0.0})
    new, batch = drawn(algorithm)
    made, _ = algorithm.prepare(replace(batch, old=new), {})
    made = made.rows(made.preference == 0) if algorithm.data == "mixed" else made
    at = made.old.clone().requires_grad_()
    (algorithm.loss(Output(at, 0 * at), made)[0] / algorithm.units(made)).backward()
    length, answers = made.mask.sum(1, keepdim=True).clamp(min=1), (made.mask.sum(1) > 0).double().sum()
    share = {
        "token-mean": 1 / made.mask.sum(),
        "seq-mean-token-mean": 1 / length / answers,
        "seq-mean-token-sum": 1 / answers,
        "seq-mean-token-sum-norm": 1 / (algorithm.loss_scale_factor or 1) / answers,
    }[algorithm.loss_agg_mode]
    assert at.grad is not None
    assert (at.grad + made.advantage * made.mask * share).abs().max() <= CLOSE
    assert at.grad.abs().max() > 0


# ---- settings


@pytest.mark.parametrize(
    ("kind", "values", "output"),
    [
        (GRPO, {"clip_ratio_low": math.nan}, "clip_ratio_low"),
        (PPO, {"horizon": 1.5}, "horizon"),
        (DPO, {"beta": "0.1"}, "beta"),
        (GSPO, {"loss_agg_mode": "token-mean"}, "loss_agg_mode"),  # of which GRPO knows more
        (DAPO, {"overlong_buffer_len": 4}, "max_response_length: is not given, and overlong_buffer_len needs"),
        (DAPO, {"overlong_buffer_len": 5, "max_response_length": 4}, "5 of 4 tokens; use at most 4"),
    ],
)
def test_a_value_out_of_range(kind: type[Algorithm], values: dict[str, Any], output: str) -> None:
    """The error names it. The range of each setting is in docs/settings.md, which is made from the classes."""
    with pytest.raises(ValueError, match=output):
        kind(**values)
    with pytest.raises(ValueError, match=output):
        from_node(kind, values)
