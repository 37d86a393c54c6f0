"""One run on the CPU and on the pretend device, and their largest difference."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import pretend
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from launcher.config.resolve import resolve
from launcher.core.checkpoints import name_of
from launcher.core.events import Event, Sample, Step
from launcher.core.metrics import TIMES
from launcher.core.settings import settings
from launcher.engines.torch import assemble
from launcher.engines.torch.rollout.decode import Decoder
from launcher.engines.torch.rollout.generator import Generator, Request
from launcher.engines.torch.rollout.sampler import TorchSampler
from launcher.engines.torch.train.policy import Policy
from launcher.spec.episode import Turn
from launcher.spec.reward import Answer, Reward
from launcher.spec.run import RunSpec

BASE = [
    "model=tiny", "model.hidden_size=16", "model.intermediate_size=32", "model.num_hidden_layers=1",
    "model.num_key_value_heads=2", "data=reverse", "data.n_prompts=16", "data.n_demos=16", "data.n_val=4",
    "data.train_batch_size=4", "data.max_response_length=10", "sampler.n=4", "optim.lr=1e-2", "engine.num_threads=1",
    "trainer.total_training_steps=3", "trainer.test_freq=2", "trainer.save_freq=2",
]  # fmt: skip
"""Three steps of a tiny model: validated before the first and after the others, saved after the others."""
ON_DEVICE = ["hardware=gpu", f"hardware.device={pretend.NAME}"]
TOLERANCE = 1e-6
NEGLIGIBLE = 1e-3
"""The difference of smaller numbers is divided by this: two that are nearly 0 differ by rounding alone."""


class Letters(Reward):
    """Fake: the share of an answer's characters that are early letters, so that answers to a prompt score unlike."""

    def score(self, answers: Sequence[Answer]) -> list[float]:
        return [sum(x in "abcdefghijkl" for x in answer.response) / 16 for answer in answers]


class Unsure(Letters):
    """Fake: gives no score to an answer that begins with a late letter."""

    def score(self, answers: Sequence[Answer]) -> list[float]:
        scores = super().score(answers)
        return [math.nan if answer.response[:1] > "x" else x for answer, x in zip(answers, scores, strict=True)]


class Answering(Decoder):
    """Fake: as if another program had drawn the tokens, which it thinks a little less or more likely."""

    def generate(self, requests: Sequence[Request], temperature: float) -> list[Turn]:
        found = super().generate(requests, temperature)
        return [replace(answer, logp=[-3.5 - token / 48 for token in answer.tokens]) for answer in found]


@settings
class Foreign(TorchSampler):
    """Another program, of which tokens count for no more than 1.5."""

    logprobs_match_trainer = False
    importance_sampling = 1.5

    def generator(self, run: RunSpec, policy: Policy) -> Generator:
        return Answering(policy.model, self, run.data.max_response_length)


@dataclass
class Trained:
    """What came of a run."""

    steps: list[Mapping[str, float]] = field(default_factory=list)
    """Each step's metrics, without those of the clock and the machine."""
    samples: list[Sample] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    """Weights and optimizer states of the last checkpoint, by `file:name`."""
    use: pretend.Use = field(default_factory=pretend.Use)
    bytes: list[int] = field(default_factory=list)
    """Memory of the device that is held at the end of each step."""

    def after(self, step: int) -> Trained:
        """The same without the first steps; `step` counts from 1, and a validation before it is one more."""
        samples = [sample for sample in self.samples if sample.step > step]
        return replace(self, steps=self.steps[step + 1 :], samples=samples)


def spec(*words: str, on_device: bool = False) -> RunSpec:
    """The run that these arguments of `rlrun train` describe; scored by `Letters` where they name no reward."""
    run = resolve([*BASE, *words, *(ON_DEVICE if on_device else [])])
    return run if any(word.startswith("reward") for word in words) else replace(run, reward=Letters())


def train(run: RunSpec, folder: Path, start: int = 0) -> Trained:
    """Train in this process as a worker does, from a checkpoint of `folder` where `start` is not 0."""
    found = Trained()
    folder.mkdir(parents=True, exist_ok=True)
    with sdpa_kernel(SDPBackend.MATH), nullcontext() if run.hardware.is_cpu else pretend.used() as use:
        found.use = use or found.use

        def emit(event: Event) -> None:
            if isinstance(event, Step):
                found.steps.append({name: x for name, x in event.metrics.items() if not name.startswith(TIMES)})
                found.bytes.append(found.use.bytes)
            elif isinstance(event, Sample):
                found.samples.append(replace(event, at=0))

        device = assemble.select_device(run, 1)
        training = assemble.build_training(run, device, folder, start, emit, lambda: False, lambda: None)
        assert training.policy.model.device.type == ("cpu" if run.hardware.is_cpu else pretend.NAME)
        assert training.train()
    last = folder / "checkpoints" / name_of(training.steps)
    for file in sorted(last.rglob("*.safetensors")):
        found.tensors |= {f"{file.relative_to(last)}:{name}": x for name, x in load_file(file).items()}
    return found


def difference(one: Trained, other: Trained) -> float:
    """The largest relative difference of any metric and of any tensor; of a tensor, relative to its largest element.

    Raises `AssertionError` where the runs reported other names, gave other answers or saved other tensors.
    """
    assert [list(step) for step in one.steps] == [list(step) for step in other.steps]
    assert [replace(sample, score=0.0) for sample in one.samples] == [
        replace(sample, score=0.0) for sample in other.samples
    ]
    assert one.tensors.keys() == other.tensors.keys()
    return max(_differences(one, other))


def _differences(one: Trained, other: Trained) -> Iterator[float]:
    for sample, same in zip(one.samples, other.samples, strict=True):
        yield _relative(sample.score, same.score)
    for a, b in zip(one.steps, other.steps, strict=True):
        yield from (_relative(a[name], b[name]) for name in a)
    for name, x in one.tensors.items():
        y = other.tensors[name]
        assert (x.dtype, x.shape) == (y.dtype, y.shape) and x.isfinite().all()
        yield float((x - y).abs().max() / x.abs().max().clamp(min=1e-30))


def _relative(a: float, b: float) -> float:
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    apart = abs(a - b) / max(abs(a), abs(b), NEGLIGIBLE)
    return math.inf if math.isnan(apart) else apart
