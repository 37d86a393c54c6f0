"""A prompt that several answers share is computed once, and nobody can tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from launcher.engines.torch.model.network import CausalLM
from launcher.engines.torch.model.packing import pack
from launcher.spec.algorithm import Batch

Ids = Callable[..., list[list[int]]]


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Norms that stay in float64: transformers' own round to float32, once for a shared prompt and once for each
    answer otherwise, so that gradients would differ in the seventh digit.
    """

    def forward(self: Any, x: Tensor) -> Tensor:
        return self.weight * x * (x.square().mean(-1, keepdim=True) + self.variance_epsilon).rsqrt()

    def make(*modules: nn.Module) -> None:
        for part in (part for module in modules for part in module.modules()):
            if type(part).__name__.endswith("RMSNorm"):
                monkeypatch.setattr(type(part), "forward", forward)

    return make


def grouped(ids: Ids, groups: Sequence[tuple[int, Sequence[int]]]) -> Batch:
    """Of each (prompt length, answer lengths) the answers to one prompt."""
    rows, opening, group = [], [], []
    for number, (prompt_length, answers) in enumerate(groups):
        prompt, *found = ids(prompt_length, *answers, seed=number)
        for answer in found:
            rows.append(prompt + answer)
            opening.append(prompt_length)
            group.append(number)
    width = max(map(len, rows))
    length = torch.tensor([len(row) for row in rows])
    place = torch.arange(width)[None]
    return Batch(
        tokens=torch.tensor([row + [0] * (width - len(row)) for row in rows]),
        length=length,
        mask=((place >= torch.tensor(opening)[:, None]) & (place < length[:, None])).double(),
        group=torch.tensor(group),
    )


GROUPS = ((6, (3, 5, 1, 4)), (2, (7,)), (6, (2, 2)), (9, (1, 1, 6)))


def plainly(batch: Batch, ids: Ids) -> Batch:
    return batch


def with_holes(batch: Batch, ids: Ids) -> Batch:
    """A tool's words inside an answer; and one answer whose first words are not looked at, so it opens later."""
    batch.mask[0, 7] = batch.mask[3, 6:8] = batch.mask[9, 11] = 0
    return batch


def with_silent_rows(batch: Batch, ids: Ids) -> Batch:
    """Rows of which nothing is predicted: one of a family, and the only one of its group."""
    batch.mask[1] = batch.mask[4] = 0
    return batch


def with_other_prompts(batch: Batch, ids: Ids) -> Batch:
    """Rows of one group need not have the same prompt; a pair of each is shared."""
    batch.tokens[2:4, :6] = torch.tensor(ids(6, seed=99)[0])
    return batch


def without_groups(batch: Batch, ids: Ids) -> Batch:
    return Batch(batch.tokens, batch.length, batch.mask)


def one_group(batch: Batch, ids: Ids) -> Batch:
    """All rows are called one group, though most prompts differ."""
    return Batch(batch.tokens, batch.length, batch.mask, torch.zeros(len(batch), dtype=torch.long))


CASES = (plainly, with_holes, with_silent_rows, with_other_prompts, without_groups, one_group)


@pytest.mark.parametrize("ragged", [True, False])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3"])  # 4 heads share 2; a window of 3; norms of heads
def test_rows_are_what_they_are_alone(
    name: str, case: Callable[..., Batch], ragged: bool, family: Callable[..., Any], ids: Ids,
    exact: Callable[..., None],
) -> None:  # fmt: skip
    model, plain = family(name)
    exact(model, plain)
    batch = case(grouped(ids, GROUPS), ids)
    weight = torch.randn(batch.tokens.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    packed = pack(batch, ragged=ragged)
    predicted = batch.mask.any(1)
    assert (packed.ids.shape[1] < batch.length[predicted].sum()) == (case is not without_groups)  # it does share
    found = model(packed).logp
    (found * weight).sum().backward()
    for row in predicted.nonzero()[:, 0].tolist():
        tokens, answer = batch.tokens[row, : batch.length[row]], batch.mask[row, : batch.length[row]]
        logp = plain(input_ids=tokens[None], use_cache=False).logits[0, :-1].log_softmax(-1)
        logp = logp.gather(1, tokens[1:, None])[:, 0] * answer[1:]
        assert (found[row, 1 : len(tokens)] - logp).abs().max() <= 1e-12
        (logp * weight[row, 1 : len(tokens)]).sum().backward()
    theirs = dict(plain.named_parameters())
    for weight_name, ours in model.module.named_parameters():
        assert torch.allclose(ours.grad, theirs[weight_name].grad, rtol=1e-10, atol=1e-12), weight_name
    assert (found[batch.mask == 0] == 0).all()


def test_a_prompt_is_laid_down_once(ids: Ids) -> None:
    packed = pack(grouped(ids, GROUPS))
    assert packed.ids.shape[1] == sum(prompt + sum(answers) for prompt, answers in GROUPS)
    single = pack(grouped(ids, GROUPS), share=False)
    assert single.ids.shape[1] == sum(len(answers) * prompt + sum(answers) for prompt, answers in GROUPS)


def test_little_to_save_is_not_worth_a_call_more(ids: Ids) -> None:
    """3 tokens of 2 x 53 are less than a sixteenth."""
    packed = pack(grouped(ids, [(3, (50, 50))]))
    assert [call.prompts for call in packed.layout.calls] == [None]
    assert packed.ids.shape[1] == 106


@pytest.mark.parametrize(("dtype", "shares"), [("float64", False), ("float32", True), ("bfloat16", True)])
def test_a_model_shares_but_in_float64(dtype: str, shares: bool, tiny: Callable[..., CausalLM], ids: Ids) -> None:
    batch = grouped(ids, GROUPS)
    assert (tiny(dtype=dtype).pack(batch).ids.shape[1] < batch.length.sum()) == shares


def test_a_model_that_cannot_pack_shares_nothing(family: Callable[..., Any], ids: Ids) -> None:
    model, _ = family("mamba", torch.float32)
    batch = grouped(ids, GROUPS)
    assert model.pack(batch).ids.shape[1] == batch.length.sum()


def test_in_float32_gradients_agree_as_far_as_norms_go(family: Callable[..., Any], ids: Ids) -> None:
    model, _ = family("llama", torch.float32)
    batch, grads = grouped(ids, GROUPS), []
    for share in (True, False):
        model.zero_grad()
        model(pack(batch, share=share)).logp.sum().backward()
        grads.append(torch.cat([weight.grad.flatten() for weight in model.parameters()]))
    assert (grads[0] - grads[1]).norm() <= 1e-6 * grads[1].norm()
