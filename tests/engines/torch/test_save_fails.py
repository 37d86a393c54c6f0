"""A checkpoint that cannot be written: it is told why, nothing of it stays, and earlier ones are safe."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
import torch

from launcher.algorithms.sft import SFT
from launcher.core import checkpoints
from launcher.engines.torch.model.load import load_model
from launcher.engines.torch.model.network import CausalLM
from launcher.engines.torch.parallel import world
from launcher.engines.torch.train.batching import Limits
from launcher.engines.torch.train.policy import Policy
from launcher.engines.torch.train.save import Saver, TrainingPosition
from launcher.models.scratch import Scratch
from launcher.spec.run import Optim

CPU = torch.device("cpu")
PolicyOf = Callable[..., Policy]
Train = Callable[[Policy, int, int], None]

LLAMA = Scratch(hidden_size=32, intermediate_size=48, num_key_value_heads=2)


@pytest.fixture
def policy_of(jobs: ModuleType) -> PolicyOf:
    return lambda model: jobs.policy_of(model, SFT(), optim=Optim(lr=1e-2), limits=Limits(4), steps=8)


@pytest.fixture
def train(jobs: ModuleType) -> Train:
    def train(policy: Policy, first: int, last: int) -> None:
        for step in range(first, last + 1):
            policy.update(jobs.rollouts_of(policy.model, step), step)

    return train


def saved(policy: Policy, root: Path, step: int = 3, keep: int = 3) -> Path:
    written = Saver(root, policy, keep).save(TrainingPosition(step, 0, 0, 24))
    assert (written.done, written.message) == (True, "")
    return root / checkpoints.name_of(step)


def weights(model: CausalLM) -> list[torch.Tensor]:
    return [weight.detach().clone() for weight in model.module.parameters()]


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes: the system refuses the rest, as a full disk would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_in_the_way_is_the_reason_and_training_goes_on(
    tmp_path: Path, policy_of: PolicyOf, train: Train
) -> None:
    policy = policy_of(load_model(LLAMA, 0, CPU))
    (tmp_path / "checkpoints").write_text("in the way")
    written = Saver(tmp_path / "checkpoints", policy, 3).save(TrainingPosition(3, 0, 0, 24))
    assert not written.done
    assert written.message.startswith("step_000003 not written: ") and "File exists" in written.message
    assert "\n" not in written.message
    assert (tmp_path / "checkpoints").read_text() == "in the way"
    train(policy, 4, 4)


@pytest.mark.parametrize("size", [0, 1000, 60_000, 140_000])  # the weights have 76 kB, the optimizer 152 kB
def test_a_disk_that_takes_no_more_is_the_reason_and_earlier_checkpoints_stay(
    size: int, tmp_path: Path, policy_of: PolicyOf, train: Train
) -> None:
    policy = policy_of(load_model(LLAMA, 0, CPU))
    train(policy, 1, 1)
    earlier = saved(policy, tmp_path, step=1)
    train(policy, 2, 2)
    with full_disk(size):
        written = Saver(tmp_path, policy, 1).save(TrainingPosition(2, 0, 0, 24))
    assert not written.done
    assert written.message.startswith("step_000002 not written: ")
    assert [path.name for path in tmp_path.iterdir()] == ["step_000001"]  # nothing half-written beside it
    assert checkpoints.faults(earlier) == []
    saved(policy, tmp_path, step=2)  # there is room again


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A disk with room for `count` finished checkpoints: beyond that, nothing more becomes durable."""

    def be(count: int) -> None:
        def sync(path: Path) -> None:
            if len(checkpoints.newest_first(tmp_path)) >= count:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

        monkeypatch.setattr(checkpoints, "fsync_path", sync)

    return be


def test_on_a_full_disk_older_checkpoints_make_room_for_a_newer(
    tmp_path: Path, policy_of: PolicyOf, small_disk: Callable[[int], None]
) -> None:
    policy = policy_of(load_model(LLAMA, 0, CPU))
    for step in (1, 2, 3):
        saved(policy, tmp_path, step)
    small_disk(3)
    written = Saver(tmp_path, policy, 3).save(TrainingPosition(4, 0, 0, 24))
    assert written.done
    assert written.message.startswith("step_000004 written only after removing step_000002, step_000001: ")
    assert "No space left" in written.message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000003", "step_000004"]
    assert checkpoints.faults(tmp_path / "step_000004") == []


def test_the_newest_good_checkpoint_is_never_given_up_for_room(
    tmp_path: Path, policy_of: PolicyOf, small_disk: Callable[[int], None]
) -> None:
    policy = policy_of(load_model(LLAMA, 0, CPU))
    for step in (1, 2, 3):
        saved(policy, tmp_path, step)
    (tmp_path / "step_000003" / "trainer.json").write_text("{}")  # the newest is damaged
    small_disk(1)
    written = Saver(tmp_path, policy, 3).save(TrainingPosition(4, 0, 0, 24))
    assert not written.done
    assert "step_000004 not written" in written.message
    newest, _ = checkpoints.newest_verified(tmp_path)
    assert newest == tmp_path / "step_000002"


def test_only_the_newest_are_kept(tmp_path: Path, policy_of: PolicyOf) -> None:
    policy = policy_of(load_model(LLAMA, 0, CPU))
    for step in (1, 2, 10, 3):
        saved(policy, tmp_path, step, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000003", "step_000010"]


def test_a_step_that_is_saved_again_replaces_itself(tmp_path: Path, policy_of: PolicyOf, train: Train) -> None:
    policy = policy_of(load_model(LLAMA, 0, CPU))
    saved(policy, tmp_path)
    train(policy, 1, 1)
    folder = saved(policy, tmp_path)
    again = load_model(LLAMA, 0, CPU, folder / "policy")
    assert all(torch.equal(a, b) for a, b in zip(weights(again), weights(policy.model), strict=True))
    assert [path.name for path in tmp_path.iterdir()] == ["step_000003"]


def test_only_rank_0_writes(tmp_path: Path, policy_of: PolicyOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "RANK", 1)
    written = Saver(tmp_path, policy_of(load_model(LLAMA, 0, CPU)), 3).save(TrainingPosition(3, 0, 0, 24))
    assert written.done
    assert list(tmp_path.iterdir()) == []
