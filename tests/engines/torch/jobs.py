"""Training and validating, the same in one process and in several. As a script it prints `everything` as JSON."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from launcher.algorithms.dapo import DAPO
from launcher.algorithms.dpo import DPO
from launcher.algorithms.dr_grpo import DrGRPO
from launcher.algorithms.grpo import GRPO
from launcher.algorithms.gspo import GSPO
from launcher.algorithms.gspo_selfplay import GSPOSelfPlay
from launcher.algorithms.ppo import PPO
from launcher.algorithms.sft import SFT
from launcher.config.resolve import resolve
from launcher.core.checkpoints import name_of
from launcher.core.events import Event, HeldOutScores
from launcher.engines.torch import assemble
from launcher.engines.torch.model.load import load_critic, load_model
from launcher.engines.torch.model.network import CausalLM, Network
from launcher.engines.torch.model.reference import Reference
from launcher.engines.torch.parallel import world
from launcher.engines.torch.parallel.sharded import Sharded
from launcher.engines.torch.parallel.strategy import Parallel, full_tensor
from launcher.engines.torch.rollout.decode import Decoder
from launcher.engines.torch.rollout.sampler import TorchSampler
from launcher.engines.torch.train import measure, movement
from launcher.engines.torch.train.answering import PromptAnswerer
from launcher.engines.torch.train.batching import Limits, collate, read_episodes
from launcher.engines.torch.train.clock import Clock
from launcher.engines.torch.train.optimizer import TrainedNetwork
from launcher.engines.torch.train.policy import Policy
from launcher.engines.torch.train.save import Saver, TrainingPosition
from launcher.engines.torch.train.sources import Order, Rollouts, Rows
from launcher.engines.torch.train.validation import Validation
from launcher.models.scratch import Scratch
from launcher.spec.algorithm import Algorithm, AlgorithmState, Batch
from launcher.spec.data import Row
from launcher.spec.episode import Episode, Turn
from launcher.spec.reward import Answer, DetailedReward, Reward, Scores
from launcher.spec.run import Optim
from launcher.text.encoder import Pair, Tokens

CPU = torch.device("cpu")
PROMPTS, ANSWERS = 6, 4  # of a step
ALGORITHMS: dict[str, Algorithm] = {
    "sft": SFT(),
    "dpo": DPO(),
    "ppo": PPO(kl_coef=0.05, lam=0.9, cliprange_value=0.05),
    "grpo": GRPO(kl_loss_coef=0.04, entropy_coeff=0.01),
    "dr_grpo": DrGRPO(loss_scale_factor=6.0),
    "gspo": GSPO(),
    "dapo": DAPO(max_response_length=6, overlong_buffer_len=3),
    "gspo_selfplay": GSPOSelfPlay(pair_weight=0.5),
}

SMALL = Scratch(hidden_size=16, intermediate_size=24, num_hidden_layers=1)


class Known(Reward):
    """Fake: every answer scores what its row's ground truth says, and a little for its length."""

    def score(self, answers: Sequence[Answer]) -> list[float]:
        return [float(answer.ground_truth or 0) + len(answer.response) / 1024 for answer in answers]


class Even(DetailedReward):
    """Fake: right is an answer whose letters add up to an even number, so that half of the pairs are mixed; to a prompt
    of `bad` it raises."""

    def __init__(self, bad: Sequence[str] = ()) -> None:
        self.bad = bad

    def judge(self, answers: Sequence[Answer]) -> Scores:
        for answer in answers:
            if answer.ground_truth in self.bad:
                raise ValueError(f"cannot score {answer.ground_truth}")
        total = [float(sum(map(ord, answer.response)) % 2 == 0) for answer in answers]
        return Scores(total, {"even": total, "rule_based": total})


# ---- data


def sequences_of(seed: int, count: int) -> list[tuple[list[int], list[int]]]:
    """Prompts of 1 to 4 tokens with answers of 1 to 6, as ids and masks."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        prompt, answer = draw.randint(1, 4), draw.randint(1, 6)
        found.append((draw.choices(range(3, 48), k=prompt + answer), [0] * prompt + [1] * answer))
    return found


def written(ids: list[int], mask: list[int]) -> Episode:
    return Episode([], (Turn(ids, "data", mask=mask),))


def shared(answers: list[tuple[list[int], list[int]]], size: int) -> list[tuple[list[int], list[int]]]:
    """Every `size` answers to the prompt of the first of them."""
    found = []
    for row, (ids, mask) in enumerate(answers):
        first, of_first = answers[row // size * size]
        prompt = first[: of_first.index(1)]
        found.append((prompt + ids[mask.index(1) :], [0] * len(prompt) + [1] * sum(mask)))
    return found


def batch_of(rows: Sequence[tuple[int, list[int], int]]) -> Batch:
    """Of each (group, ids, where the answer begins) a row."""
    length, opening = (torch.tensor(x) for x in ([len(ids) for _, ids, _ in rows], [begin for *_, begin in rows]))
    longest = int(length.max())
    place = torch.arange(longest)[None]
    return Batch(
        tokens=torch.tensor([ids + [0] * (longest - len(ids)) for _, ids, _ in rows]),
        length=length,
        mask=((place >= opening[:, None]) & (place < length[:, None])).double(),
        group=torch.tensor([group for group, *_ in rows]),
    )


def prompts(count: int) -> Rows:
    """Rows to be answered; the truth of each is its place."""
    rows = Rows()
    for place, (ids, mask) in enumerate(sequences_of(7, count)):
        rows.rows.append(Row(f"f:{place}", "", ground_truth=str(place)))
        rows.tokens.append(Tokens(place, ids[: mask.index(1)], []))
    return rows


def my_numbers() -> range:
    """This process's share of the prompts or pairs of a step."""
    return range(PROMPTS)[world.RANK :: world.SIZE]


def answered(step: int, numbers: Sequence[int]) -> list[Episode]:
    """The prompts of these numbers with 4 answers each, scored."""
    draw = random.Random(1000 + step)
    answers = shared(sequences_of(step, PROMPTS * ANSWERS), ANSWERS)
    scores = [float(draw.randint(0, 3)) for _ in answers]
    mine = [row for number in numbers for row in range(number * ANSWERS, number * ANSWERS + ANSWERS)]
    return [replace(written(*answers[row]), group=row // ANSWERS, reward=scores[row]) for row in mine]


def compared_pairs(step: int, numbers: Sequence[int]) -> list[Episode]:
    answers = shared(sequences_of(step, PROMPTS * 2), 2)
    tokens = [Tokens(row // 2, *answer) for row, answer in enumerate(answers)]
    return read_episodes([Pair(number, tokens[2 * number], tokens[2 * number + 1]) for number in numbers], numbers)


def rollouts_of(model: CausalLM, step: int) -> Batch:
    return collate(answered(step, my_numbers()), model)


def pairs_of(model: CausalLM, step: int) -> Batch:
    return collate(compared_pairs(step, my_numbers()), model)


def batch_for(algorithm: Algorithm, model: CausalLM, step: int) -> Batch:
    """What this process learns from in a step. Of mixed rows one process may hold the pairs and one the prompts."""
    if algorithm.data == "answers":
        return collate([written(*row) for row in sequences_of(step, 12)[world.RANK :: world.SIZE]], model)
    if algorithm.data == "pairs":
        return pairs_of(model, step)
    if algorithm.data == "prompts":
        return rollouts_of(model, step)
    prompts = answered(step, [number for number in my_numbers() if number % 2])
    return collate(prompts + compared_pairs(step, [number for number in my_numbers() if number % 2 == 0]), model)


def prepared(policy: Policy, step: int = 1, *, on_policy: bool = False) -> Batch:
    """A step's batch with all that its loss needs."""
    batch = batch_for(policy.algorithm, policy.model, step)
    return policy.algorithm.prepare(policy.annotate(batch, Clock(), on_policy=on_policy), {}, world.all_reduce_sum)[0]


# ---- models and policies


def draw(module: torch.nn.Module, spread: float, seed: int) -> None:
    """Random weights, loud enough that next tokens are far from equally likely. Adapters come last, so that the
    weights under them are those of a model without.
    """
    generator = torch.Generator().manual_seed(seed)
    for _, weight in sorted(module.named_parameters(), key=lambda named: "lora_" in named[0]):
        if weight.dim() > 1:
            weight.data.copy_(spread * torch.randn(weight.shape, generator=generator, dtype=torch.float64))


def small(dtype: str, seed: int = 0, device: torch.device = CPU, **values: Any) -> CausalLM:
    model = load_model(replace(SMALL, dtype=dtype, **values), seed, device)
    draw(model.module, 0.3, seed)
    return model


def policy_of(
    model: CausalLM, algorithm: Algorithm | None = None, *, limits: Limits | None = None, optim: Optim | None = None,
    steps: int = 10, parallel: Parallel | None = None, reference: CausalLM | None = None,
    critic: Network | None = None, **more: Any,
) -> Policy:  # fmt: skip
    """A policy with what its algorithm needs, laid out as `assemble` does it."""
    optim, parallel, algorithm = optim or Optim(lr=1e-3), parallel or Parallel(), algorithm or GRPO()
    frozen = Reference(model) if model.has_adapters and "reference" in algorithm.needs else None
    if reference:
        parallel.shard(reference)
        frozen = Reference(reference)
    judge = None
    if critic:
        parallel.shard(critic)
        judge = TrainedNetwork(critic, optim, steps, parallel)
    parallel.shard(model)
    actor = TrainedNetwork(model, optim, steps, parallel)
    return Policy(algorithm, actor, limits or Limits(16), parallel, reference=frozen, critic=judge, **more)


def policy_for(
    kind: str, dtype: str, limits: Limits, parallel: Parallel | None = None, device: torch.device = CPU,
    **values: Any,
) -> Policy:  # fmt: skip
    """A small policy of one of ALGORITHMS."""
    algorithm, model = ALGORITHMS[kind], small(dtype, device=device, **values)
    needs_copy = "reference" in algorithm.needs and not model.has_adapters
    judge = load_critic(replace(SMALL, dtype=dtype), 0, device) if "critic" in algorithm.needs else None
    if judge:
        draw(judge, 0.3, 2)
    return policy_of(
        model, algorithm, limits=limits, optim=Optim(lr=1e-3, clip_grad=0.5), parallel=parallel, temperature=0.9,
        reference=small(dtype, 1, device, **values) if needs_copy else None, critic=judge,
    )  # fmt: skip


def train_until(
    policy: Policy, step: int, told: AlgorithmState, updates: int = 2
) -> tuple[list[dict[str, float]], AlgorithmState]:
    """The metrics of some updates from a step's batch; all but the first are off-policy."""
    batch = policy.annotate(batch_for(policy.algorithm, policy.model, step), Clock(), on_policy=False)
    batch, told = policy.algorithm.prepare(batch, told, world.all_reduce_sum)
    done = [policy.update(batch, step) for _ in range(updates)]
    return [{**update.metrics, **update.largest, **told} for update in done], told


def trained(kind: str, dtype: str, limits: Limits, steps: int = 5, **values: Any) -> dict[str, Any]:
    """The metrics of every update and the weights at the end, and how far they moved."""
    policy, told, metrics = policy_for(kind, dtype, limits, **values), dict[str, float](), []
    policy.actor.start = movement.sample(policy.actor.network)
    for step in range(1, steps + 1):
        found, told = train_until(policy, step, told)
        metrics += found
    metrics.append(movement.distances(policy.actor))
    return {"metrics": metrics, "weights": weights(policy).tolist()}


def saved(policy: Policy, root: Path, step: int = 2) -> Path:
    written = Saver(root, policy, 3).save(TrainingPosition(step, 0, 0, 24))
    assert (written.done, written.message) == (True, "")
    return root / name_of(step)


def weights(policy: Policy) -> torch.Tensor:
    """All that is trained, of the critic too, in one row."""
    networks = [policy.model, *([policy.critic.network] if policy.critic else [])]
    return torch.cat([full_tensor(weight.detach()).flatten() for net in networks for weight in net.parameters()])


def run(folder: Path, words: Sequence[str], start: int = 0) -> list[Event]:
    """The events of a whole run, in this process."""
    told = list[Event]()
    assemble.build_training(resolve(words), CPU, folder, start, told.append, lambda: False, lambda: None).train()
    return told


# ---- validating, and sampling until a step is full


def validated(
    kind: str, device: torch.device = CPU, size: int = 5, parallel: Parallel | None = None
) -> dict[str, float]:
    """Metrics of a validation of 11 rows from two sources, `size` at a time, and the score of each. Their spread over
    the processes is not even."""
    model = small("float64", device=device)
    policy = policy_of(
        model, ALGORITHMS[kind], limits=Limits(2), parallel=parallel, reference=small("float64", 1, device)
    )
    held_out, answers = Rows(), shared(sequences_of(3, 22), 2)
    for place in range(11):
        source = "sums" if place % 3 else "words"
        held_out.rows.append(Row(f"f:{place}", "", response="", ground_truth=str(place * place), data_source=source))
        one, other = Tokens(place, *answers[2 * place]), Tokens(place, *answers[2 * place + 1])
        held_out.tokens.append(Pair(place, one, other) if kind == "dpo" else one)
    decoder = Decoder(model, TorchSampler(val_n=4, val_temperature=1.0), 6, policy.parallel)
    metrics, events = Validation(held_out, policy, PromptAnswerer(decoder, Known()), 5, size).measure(4)
    scores = [event for event in events if isinstance(event, HeldOutScores)]
    return metrics | {f"{one.data_source} {n}": score for one in scores for n, score in enumerate(one.scores)}


def rolled(
    reward: Reward, algorithm: Algorithm, n: int = 2, step: int = 1, rows: Rows | None = None,
    order: Order | None = None, parallel: Parallel | None = None, **how: bool,
) -> tuple[Batch, dict[str, float], Rollouts]:  # fmt: skip
    """A step's answers with their scores (of 16 prompts, where no rows are given), what is told, and their source."""
    model, parallel, rows = small("float64"), parallel or Parallel(), rows or prompts(16)
    parallel.shard(model)
    answerer = PromptAnswerer(Decoder(model, TorchSampler(n=n), 5, parallel), reward)
    source = Rollouts(rows, order or Order(len(rows.rows), PROMPTS, 0, True), answerer, algorithm, 3, **how)
    return *source.batch(step, Clock()), source


def filled(step: int, parallel: Parallel | None = None) -> dict[str, Any]:
    """This process's rows of a step that samples until it is full, by group."""
    return _as_json(*rolled(Even(), DAPO(), step=step, parallel=parallel)[:2])


def mixed(parallel: Parallel | None = None) -> dict[str, Any]:
    """This process's rows of a step of pairs and prompts by turns; of two processes one has all the pairs."""
    rows, answers = Rows(), shared(sequences_of(7, 12), 2)
    for place in range(PROMPTS):
        one, other = Tokens(place, *answers[2 * place]), Tokens(place, *answers[2 * place + 1])
        rows.rows.append(Row(f"f:{place}", ""))
        rows.tokens.append(Tokens(place, one.ids, []) if place % 2 else Pair(place, one, other))
    order = Order(PROMPTS, PROMPTS, 0, False)
    return _as_json(*rolled(Even(), GSPOSelfPlay(), rows=rows, order=order, parallel=parallel)[:2])


def _as_json(found: Batch, told: dict[str, float]) -> dict[str, Any]:
    ids = [row[:length] for row, length in zip(found.tokens.tolist(), found.length.tolist(), strict=True)]
    held = {name: getattr(found, name).tolist() for name in ("group", "reward", "preference")}
    return {**held, "ids": ids, "answer": found.mask.sum(1).tolist(), "told": told}


# ---- everything, for several processes to do together


COMPARED = ("ppo float64", "grpo float32", "gspo_selfplay float64")
"""With a critic, where prompts are shared, and with groups that stay whole."""


def everything() -> dict[str, Any]:
    """Equal for every number of processes, and for every way to lay the weights on them."""
    found: dict[str, Any] = {}
    ways: dict[str, Parallel | None] = {"": None, " fsdp2": fsdp2()} if world.SIZE > 1 else {"": None}
    for way, parallel in ways.items():
        for name in COMPARED:
            limits = Limits(3, 13 if parallel else None)  # unlike numbers of parts on the processes
            found[name + way] = trained(*name.split(), limits, 2, parallel=parallel)
        for kind in ("dpo",) if parallel else ("sft", "dpo"):
            found[f"validation {kind}{way}"] = validated(kind, parallel=parallel)
        found[f"filled{way}"] = [filled(step, parallel) for step in (1, 2, 3)]
        found[f"mixed{way}"] = mixed(parallel)
        found[f"measured{way}"] = measured(parallel)
    found["experts"] = experts()
    return found


def measured(parallel: Parallel | None = None) -> dict[str, float]:
    """The metrics of a step's data with a critic, and how its rewards and the gradients of its weights are spread."""
    policy = policy_for("ppo", "float64", Limits(3), parallel)
    raw, batch = batch_for(policy.algorithm, policy.model, 1), prepared(policy)
    norms = policy.update(batch, measure.DISTRIBUTION_STEPS).weight_norms
    assert norms is not None
    rewards = measure.distribution(1, "rewards", batch.reward, shared=False)
    assert rewards
    lists = {"norm": norms.tolist(), "edge": rewards.edges, "count": rewards.counts}
    spread = {f"{name} {n}": float(x) for name, values in lists.items() for n, x in enumerate(values)}
    return measure.batch_metrics(raw, batch, True, 6, (), 4) | spread


def experts() -> list[float | None]:
    """The summed gradient of three weights, of which one is used by the first process, and one by none."""
    weights = [torch.nn.Parameter(torch.ones(1)) for _ in range(3)]
    for number in range(6)[world.RANK :: world.SIZE]:
        (weights[0] * number + (weights[1] if number == 0 else 0)).sum().backward()
    Parallel().reduce_gradients(weights)
    return [None if weight.grad is None else weight.grad.item() for weight in weights]


def fsdp2() -> Parallel:
    return Sharded(CPU, mixed=False, offload=False)


def main() -> int:
    torch.set_num_threads(1)
    world.init_distributed(CPU)
    print(json.dumps(everything()))
    world.destroy_distributed()
    return 0


if __name__ == "__main__":  # python jobs.py FOLDER: WORLD_SIZE processes, whose output is in FOLDER
    from forked import fork_ranks

    print(json.dumps(fork_ranks(int(os.environ["WORLD_SIZE"]), Path(sys.argv[1]), main)))
