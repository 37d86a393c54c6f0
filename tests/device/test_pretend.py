"""The pretend device itself: it can say no, and it counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pretend
import pytest
import torch
from pretend import DEVICE, Use
from torch import Tensor

from launcher.engines.torch.model.load import load_critic, load_model
from launcher.engines.torch.model.reference import Reference
from launcher.engines.torch.parallel.strategy import Parallel
from launcher.engines.torch.train.optimizer import TrainedNetwork
from launcher.models.scratch import Scratch
from launcher.spec.run import Optim

TINY = Scratch(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2)


@pytest.fixture
def use() -> Iterator[Use]:
    with pretend.used() as found:
        yield found


@pytest.mark.parametrize(
    "rendezvous",
    [lambda x, y: x @ y, lambda x, y: x.add_(y), lambda x, y: x[y > 0], torch.nn.functional.linear],
)
def test_a_cpu_tensor_that_meets_one_of_the_device_raises(
    rendezvous: Callable[[Tensor, Tensor], Tensor], use: Use
) -> None:
    x, y = torch.ones(3, 3, device=DEVICE), torch.ones(3, 3)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        rendezvous(x, y)
    assert len(use.meetings) == 1
    assert rendezvous(x, y.to(DEVICE)).device == DEVICE
    assert len(use.meetings) == 1


def test_memory_is_counted_once_for_all_views(use: Use) -> None:
    x = torch.ones(10, 10, device=DEVICE)
    y = x[2:].T
    assert use.bytes == 400
    del x
    assert use.bytes == 400
    del y
    assert (use.bytes, use.peak_bytes) == (0, 400)


# ---- what rests in CPU memory


def test_a_frozen_copy_takes_memory_of_the_device_only_while_it_is_used(use: Use) -> None:
    model = load_model(TINY, 0, DEVICE)
    taken = use.bytes
    copy = Reference(model, offloaded=True)
    assert use.bytes < taken / 10  # buffers of positions stay
    resting = use.bytes
    with pytest.raises(KeyError), copy.on_device():
        assert use.bytes == taken
        raise KeyError  # it goes to rest even then
    assert use.bytes == resting


def test_a_critic_takes_its_optimizer_along(use: Use) -> None:
    trained = TrainedNetwork(load_critic(TINY, 0, DEVICE), Optim(lr=0.1), 10, Parallel(), offloaded=True)
    start = use.bytes
    with trained.on_device(learning=True) as network:
        sum(weight.sum() for weight in network.parameters()).backward()
        trained.optimizer_step("critic", 1, {})
        assert use.bytes > 2.5 * start  # weights, and two means of the gradient
    assert use.bytes < start / 10
    moments = [x for state in trained.optimizer.state.values() for x in state.values() if x.ndim]
    assert {x.device.type for x in moments} == {"cpu"}
