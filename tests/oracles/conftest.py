"""Batches that two implementations are asked about.

`make oracles` runs these tests where verl and TRL are installed; elsewhere they are skipped.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from launcher.spec.algorithm import Algorithm, Batch, Output  # noqa: E402

torch.set_num_threads(1)

CLOSE = 1e-9


def _drawn(
    seed: int, shape: tuple[int, int, int], holes: bool = False, empty: bool = False, shortest: int = 1
) -> tuple[Any, Batch]:
    """Log-probabilities [B, T] now, and a ragged batch in float64 with answers of `shortest` tokens and more.

    `holes` masks tokens inside answers, as a tool's are; `empty` masks a whole row.
    """
    torch.manual_seed(seed)
    prompts, answers, columns = shape
    rows = prompts * answers
    prompt = torch.randint(1, 3, (rows,))
    length = prompt + shortest + (torch.rand(rows) * (columns - prompt - shortest + 1)).long()  # up to the whole row
    place = torch.arange(columns).expand(rows, columns)
    mask = ((place >= prompt[:, None]) & (place < length[:, None])).double()
    if holes:
        mask = mask * ((torch.rand(rows, columns) < 0.7) | (place == prompt[:, None]))  # its first token stays
    if empty:
        mask[rows // 2] = 0

    def noise(size: float) -> Any:
        return size * torch.randn(rows, columns, dtype=torch.float64)

    new = -torch.rand(rows, columns, dtype=torch.float64) * 3 * mask
    return new, Batch(
        tokens=torch.zeros(rows, columns, dtype=torch.long),
        length=length,
        mask=mask,
        group=torch.arange(prompts).repeat(answers),  # answers to one prompt do not stand together
        old=(new + noise(0.5)) * mask,  # ratios far enough from 1 to be clipped
        reference=(new + noise(0.3)) * mask,
        value=noise(1.0),
        reward=torch.randint(-4, 5, (rows,)) / 4 + torch.rand(rows, dtype=torch.float64),
        advantage=noise(1.0) * mask,
    )


@pytest.fixture(scope="session")
def drawn() -> Callable[..., Any]:
    return _drawn


@pytest.fixture(scope="session")
def mean_loss() -> Callable[[Algorithm, Any, Batch], Any]:
    """What the engine makes of a loss."""
    return lambda algorithm, logp, batch: algorithm.loss(Output(logp), batch)[0] / algorithm.units(batch)


def _gradient(value: Any, at: Any) -> Any:
    """Of a scalar, or of a tensor's sum in which every place counts differently."""
    weights = torch.linspace(1, 2, value.numel(), dtype=torch.float64).view(value.shape)
    return torch.autograd.grad((value * weights).sum(), at)[0]


def _difference(ours: Any, theirs: Any) -> float:
    ours, theirs = (torch.as_tensor(x, dtype=torch.float64) for x in (ours, theirs))
    assert ours.shape == theirs.shape
    assert torch.isfinite(ours).all() and torch.isfinite(theirs).all()
    return (ours - theirs).abs().max().item()


@pytest.fixture(scope="session")
def agree() -> Callable[..., None]:
    """Asserts that two functions of `at`, and their gradients, are equal; without `at`, that two values are."""

    def compare(ours: Any, theirs: Any, at: Any = None) -> None:
        gradient = 0.0
        if at is not None:
            mine, other = at.clone().requires_grad_(), at.clone().requires_grad_()
            ours, theirs = ours(mine), theirs(other)
            pulls = _gradient(ours, mine), _gradient(theirs, other)
            assert pulls[0].abs().max() > 0, "nothing pulls, so nothing is compared"
            gradient = _difference(*pulls)
            ours, theirs = ours.detach(), theirs.detach()
        assert max(_difference(ours, theirs), gradient) <= CLOSE

    return compare


# ---- TRL's losses are methods: stand-ins for the trainers they read


def _accelerator() -> Any:
    return SimpleNamespace(
        device="cpu", num_processes=1, process_index=0, gather=lambda x: x, gather_for_metrics=lambda x: x,
        reduce=lambda x, reduction: x,
    )  # fmt: skip


@pytest.fixture(scope="session")
def trl_grpo() -> Callable[..., Any]:
    """The loss of `GRPOTrainer` at log-probabilities [B, T]; keywords are its settings."""
    trainers = pytest.importorskip("trl.trainer.grpo_trainer")

    def loss(logp: Any, batch: Batch, *, delta: float | None = None, **settings: Any) -> Any:
        held = {"use_bias_correction_kl": False, "delta": delta, "steps_per_generation": 1}
        defaults = {
            "loss_type": "grpo", "importance_sampling_level": "token", "beta": 0.0, "epsilon_low": 0.2,
            "epsilon_high": 0.2, "max_completion_length": logp.shape[1],
        }  # fmt: skip
        trainer = SimpleNamespace(
            **(defaults | settings), args=SimpleNamespace(**held),
            _get_per_token_logps_and_entropies=lambda *_, **__: (logp, torch.zeros_like(logp), None),
            aux_loss_enabled=False, top_entropy_quantile=1.0, off_policy_mask_threshold=None, use_vllm=False,
            model=SimpleNamespace(training=True), current_gradient_accumulation_steps=1,
            accelerator=_accelerator(), _entropy_bonus_enabled=False, entropy_coef=0.0,
            use_adaptive_entropy=False, _metrics={"train": defaultdict(list)},
        )  # fmt: skip
        trainer.accelerator.sync_gradients = False
        inputs = {
            "prompt_ids": batch.tokens[:, :0], "prompt_mask": batch.tokens[:, :0], "completion_ids": batch.tokens,
            "completion_mask": batch.mask, "advantages": batch.advantage, "old_per_token_logps": batch.old,
            "ref_per_token_logps": batch.reference, "num_items_in_batch": batch.mask.sum(),
        }  # fmt: skip
        return trainers.GRPOTrainer._compute_loss(trainer, None, inputs)

    return loss


@pytest.fixture(scope="session")
def trl_advantage() -> Callable[..., Any]:
    """[B] advantages of groups that stand together.

    They are made in the middle of a method that samples; those statements are taken out of it and run alone.
    """
    trl = pytest.importorskip("trl.trainer.grpo_trainer")
    source = textwrap.dedent(inspect.getsource(trl.GRPOTrainer._generate_and_score_completions))
    body = ast.parse(source).body[0].body  # type: ignore[attr-defined]
    texts = [ast.unparse(statement) for statement in body]
    (first,) = (i for i, text in enumerate(texts) if text.startswith("if self.multi_objective_aggregation =="))
    (last,) = (i for i, text in enumerate(texts) if text.startswith("advantages = torch.nan_to_num("))
    statements = compile("\n".join(texts[first : last + 1]), "trl", "exec")

    def advantage(reward: Any, answers: int, scale: str) -> Any:
        trainer = SimpleNamespace(
            multi_objective_aggregation="sum_then_normalize", scale_rewards=scale, loss_type="grpo",
            reward_weights=torch.ones(1, dtype=reward.dtype),
        )  # fmt: skip
        names = {
            "self": trainer, "rewards_per_func": reward[:, None], "num_generations": answers, "device": "cpu",
            "unscorable_mask": torch.zeros(len(reward), dtype=torch.bool),
        }  # fmt: skip
        exec(statements, vars(trl) | names, names)
        return names["advantages"]

    return advantage


@pytest.fixture(scope="session")
def trl_dpo() -> Callable[..., Any]:
    """The loss of `DPOTrainer` at log-probabilities [B, T], and what it reports; keywords are its settings."""
    trainers = pytest.importorskip("trl.trainer.dpo_trainer")

    def loss(logp: Any, batch: Batch, loss_type: str, beta: float, label_smoothing: float = 0.0) -> Any:
        # its rows: all chosen answers, then the rejected ones in the same order; its position t predicts token t + 1
        order = torch.argsort(batch.group + (batch.preference < 0) * (batch.group.max() + 1))
        logp, mask, reference = (torch.nn.functional.pad(x[order], (1, 0)) for x in (logp, batch.mask, batch.reference))
        reference_of = ((reference * mask).sum(1)).chunk(2)
        shifted = (logp * mask)[:, 1:]
        outputs = SimpleNamespace(
            log_probs=shifted, entropy=0 * shifted, mean_logits=0 * shifted, is_top1=shifted.detach() > 1
        )
        metrics: dict[str, list[float]] = defaultdict(list)
        trainer = SimpleNamespace(
            loss_types=[loss_type], loss_weights=[1.0], beta=beta, label_smoothing=label_smoothing,
            model=SimpleNamespace(training=True), accelerator=_accelerator(), aux_loss_enabled=False, ld_alpha=None,
            precompute_ref_logps=True, f_divergence_type="reverse_kl", use_weighting=False, _metrics={"train": metrics},
            _total_train_tokens=0, _tp_size=1,
        )  # fmt: skip
        inputs = {
            "input_ids": mask.long(), "attention_mask": mask, "completion_mask": mask,
            "ref_chosen_logps": reference_of[0], "ref_rejected_logps": reference_of[1],
        }  # fmt: skip
        found = trainers.DPOTrainer._compute_loss(trainer, lambda **_: outputs, inputs, return_outputs=False)
        return found, {name: values[-1] for name, values in metrics.items() if isinstance(values, list)}

    return loss
