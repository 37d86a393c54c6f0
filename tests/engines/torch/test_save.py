"""A checkpoint: training goes on from it as if it had never stopped, and others can read it."""

from __future__ import annotations

import errno
import json
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from launcher import checkpoints
from launcher.algorithms.grpo import GRPO
from launcher.algorithms.sft import SFT
from launcher.engines.torch import world
from launcher.engines.torch.model import CausalLM, load
from launcher.engines.torch.policy import Policy
from launcher.engines.torch.save import Position, Saver, load_optimizer, position_of
from launcher.models.pretrained import Pretrained
from launcher.models.scratch import Scratch
from launcher.problems import Problems
from launcher.spec.algorithm import Batch
from launcher.spec.run import Optim

CPU = torch.device("cpu")
Rollouts = Callable[[CausalLM, int], Batch]

LLAMA = Scratch(hidden_size=32, intermediate_size=48, num_key_value_heads=2)
TIED = Scratch(architecture="qwen3", hidden_size=32, intermediate_size=48, tie_word_embeddings=True)
BF16 = Scratch(hidden_size=32, intermediate_size=48, dtype="bfloat16")


def policy_of(model: CausalLM, algorithm: SFT | GRPO | None = None) -> Policy:
    optim = Optim(lr=1e-2, lr_warmup_steps=3, lr_scheduler_type="cosine")
    return Policy(algorithm or SFT(), model, optim, micro=4, steps=8)


def train(policy: Policy, rollouts_of: Rollouts, first: int, last: int) -> list[dict[str, float]]:
    found = []
    for step in range(first, last + 1):
        found.append(policy.update(policy.algorithm.prepare(rollouts_of(policy.model, step)), step))
    return found


def saved(policy: Policy, root: Path, step: int = 3, keep: int = 3) -> Path:
    written = Saver(root, policy, keep).save(Position(step, 0, 0, 24))
    assert (written.done, written.told) == (True, "")
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


# ---- going on


@pytest.mark.parametrize("algorithm", [SFT(), GRPO()])
@pytest.mark.parametrize("spec", [LLAMA, TIED, BF16], ids=["llama", "tied", "bfloat16"])
def test_training_goes_on_to_the_last_bit(
    spec: Scratch, algorithm: SFT | GRPO, tmp_path: Path, rollouts_of: Rollouts
) -> None:
    policy = policy_of(load(spec, 0, CPU), algorithm)
    train(policy, rollouts_of, 1, 3)
    folder = saved(policy, tmp_path)
    expected = train(policy, rollouts_of, 4, 8)

    again = policy_of(load(spec, 0, CPU, folder / "policy"), algorithm)
    load_optimizer(again, folder)
    assert train(again, rollouts_of, 4, 8) == expected
    assert all(torch.equal(a, b) for a, b in zip(weights(again.model), weights(policy.model), strict=True))


def test_without_the_optimizers_state_it_would_go_on_otherwise(tmp_path: Path, rollouts_of: Rollouts) -> None:
    """The test above can fail."""
    policy = policy_of(load(LLAMA, 0, CPU))
    train(policy, rollouts_of, 1, 3)
    folder = saved(policy, tmp_path)
    expected = train(policy, rollouts_of, 4, 8)
    assert train(policy_of(load(LLAMA, 0, CPU, folder / "policy")), rollouts_of, 4, 8) != expected


def test_saving_changes_nothing(tmp_path: Path, rollouts_of: Rollouts) -> None:
    found = []
    for save in (False, True):
        policy = policy_of(load(LLAMA, 0, CPU))
        train(policy, rollouts_of, 1, 3)
        if save:
            saved(policy, tmp_path)
        found.append(train(policy, rollouts_of, 4, 5))
    assert found[0] == found[1]


def test_the_position_comes_back(tmp_path: Path, rollouts_of: Rollouts) -> None:
    policy = policy_of(load(LLAMA, 0, CPU))
    position = Position(step=1000000, seed=2**62, epoch=3, rows=77)
    assert Saver(tmp_path, policy, 3).save(position).done  # before any update: there is no optimizer state yet
    assert position_of(tmp_path / "step_1000000") == position


@pytest.mark.parametrize("spec", [LLAMA, TIED], ids=["llama", "tied"])
def test_the_optimizers_tensors_are_named_by_weight(spec: Scratch, tmp_path: Path, rollouts_of: Rollouts) -> None:
    policy = policy_of(load(spec, 0, CPU))
    train(policy, rollouts_of, 1, 2)
    found = load_file(saved(policy, tmp_path) / "state" / "optimizer.safetensors")
    names = [name for name, _ in policy.model.module.named_parameters()]
    assert set(found) == {f"{key}.{name}" for key in ("exp_avg", "exp_avg_sq", "step") for name in names}
    assert all(value.item() == 2 for name, value in found.items() if name.startswith("step."))
    assert ("exp_avg.lm_head.weight" in found) == (spec is LLAMA)  # tied, it is the embedding


# ---- for others


@pytest.mark.parametrize("spec", [LLAMA, TIED, BF16], ids=["llama", "tied", "bfloat16"])
def test_plain_transformers_reads_the_policy(
    spec: Scratch, tmp_path: Path, rollouts_of: Rollouts, ids: Callable[..., list[list[int]]]
) -> None:
    model = load(spec, 0, CPU)
    policy = policy_of(model)
    train(policy, rollouts_of, 1, 2)
    path = saved(policy, tmp_path) / "policy"
    theirs = AutoModelForCausalLM.from_pretrained(path)
    assert theirs.dtype == model.module.dtype
    assert theirs.config._attn_implementation == "sdpa"  # our own attention stays with us
    assert all(torch.equal(a, b) for a, b in zip(weights(model), theirs.parameters(), strict=True))
    model.module.eval()
    tokens = torch.tensor(ids(6, 6))
    with torch.no_grad():
        assert torch.equal(theirs(input_ids=tokens).logits, model.module(input_ids=tokens).logits)

    check_same_tokens(AutoTokenizer.from_pretrained(path), model.tokenizer)


def check_same_tokens(found: PreTrainedTokenizerFast, expected: PreTrainedTokenizerFast) -> None:
    text = "reverse, 12+3=15. ABC"
    assert found(text).input_ids == expected(text).input_ids
    assert found.decode(found(text).input_ids) == expected.decode(expected(text).input_ids)
    for name in ("pad_token_id", "eos_token_id", "unk_token_id", "chat_template"):
        assert getattr(found, name) == getattr(expected, name)


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_training_goes_on_with_the_same_tokens(architecture: str, tmp_path: Path) -> None:
    spec = Scratch(architecture=architecture)
    model = load(spec, 0, CPU)
    model.tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    folder = saved(policy_of(model), tmp_path / "run" / "checkpoints")
    check_same_tokens(load(spec, 0, CPU, folder / "policy").tokenizer, model.tokenizer)
    check_same_tokens(load(Pretrained(path=str(tmp_path / "run")), 0, CPU).tokenizer, model.tokenizer)


OWN_CODE = """
from transformers import LlamaConfig, LlamaForCausalLM
class OwnConfig(LlamaConfig):
    model_type = "own"
class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
"""


def test_a_model_that_brings_its_own_code_is_taken_up_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(tmp_path / "modules")
    first, origin = load(LLAMA, 0, CPU), tmp_path / "origin"
    first.module.save_pretrained(origin)
    first.tokenizer.save_pretrained(origin)
    config = json.loads((origin / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}}
    (origin / "config.json").write_text(json.dumps(config))
    (origin / "own.py").write_text(OWN_CODE)

    spec = Pretrained(path=str(origin), trust_remote_code=True)
    folder = saved(policy_of(load(spec, 0, CPU)), tmp_path / "checkpoints")
    again = load(spec, 0, CPU, folder / "policy")
    assert type(again.module).__name__ == "OwnModel"
    assert all(torch.equal(a, b) for a, b in zip(weights(again), weights(first), strict=True))
    with pytest.raises(Problems, match="cannot be loaded"):
        load(Pretrained(path=str(origin)), 0, CPU)  # nobody allowed it


def test_a_run_can_begin_from_a_runs_folder(tmp_path: Path, rollouts_of: Rollouts) -> None:
    policy = policy_of(load(LLAMA, 0, CPU))
    train(policy, rollouts_of, 1, 2)
    saved(policy, tmp_path / "run" / "checkpoints", step=2)
    again = load(Pretrained(path=str(tmp_path / "run")), 0, CPU)
    assert all(torch.equal(a, b) for a, b in zip(weights(again), weights(policy.model), strict=True))
    assert again.packs


def test_no_pickle_anywhere(tmp_path: Path, rollouts_of: Rollouts) -> None:
    policy = policy_of(load(LLAMA, 0, CPU))
    train(policy, rollouts_of, 1, 1)
    folder = saved(policy, tmp_path)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    assert {path.suffix for path in files} <= {".json", ".safetensors", ".jinja"}
    for path in files:
        head = path.read_bytes()[:9]
        assert not head.startswith((b"\x80", b"PK")), path  # how a pickle begins, and torch.save's zip of pickles
        if path.suffix == ".json":
            json.loads(path.read_text())
        if path.suffix == ".safetensors":
            assert head[8:9] == b"{"  # the length of a JSON header, then the header
    assert checkpoints.faults(folder) == []


# ---- when it cannot be written


def test_a_file_in_the_way_is_the_reason_and_training_goes_on(tmp_path: Path, rollouts_of: Rollouts) -> None:
    policy = policy_of(load(LLAMA, 0, CPU))
    (tmp_path / "checkpoints").write_text("in the way")
    written = Saver(tmp_path / "checkpoints", policy, 3).save(Position(3, 0, 0, 24))
    assert not written.done
    assert written.told.startswith("step_000003 not written: ") and "File exists" in written.told
    assert "\n" not in written.told
    assert (tmp_path / "checkpoints").read_text() == "in the way"
    train(policy, rollouts_of, 4, 4)


@pytest.mark.parametrize("size", [0, 1000, 60_000, 140_000])  # the weights have 76 kB, the optimizer 152 kB
def test_a_disk_that_takes_no_more_is_the_reason_and_earlier_checkpoints_stay(
    size: int, tmp_path: Path, rollouts_of: Rollouts
) -> None:
    policy = policy_of(load(LLAMA, 0, CPU))
    train(policy, rollouts_of, 1, 1)
    earlier = saved(policy, tmp_path, step=1)
    train(policy, rollouts_of, 2, 2)
    with full_disk(size):
        written = Saver(tmp_path, policy, 1).save(Position(2, 0, 0, 24))
    assert not written.done
    assert written.told.startswith("step_000002 not written: ")
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

        monkeypatch.setattr(checkpoints, "sync_path", sync)

    return be


def test_on_a_full_disk_older_checkpoints_make_room_for_a_newer(
    tmp_path: Path, small_disk: Callable[[int], None]
) -> None:
    policy = policy_of(load(LLAMA, 0, CPU))
    for step in (1, 2, 3):
        saved(policy, tmp_path, step)
    small_disk(3)
    written = Saver(tmp_path, policy, 3).save(Position(4, 0, 0, 24))
    assert written.done
    assert written.told.startswith("step_000004 written only after removing step_000002, step_000001: ")
    assert "No space left" in written.told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000003", "step_000004"]
    assert checkpoints.faults(tmp_path / "step_000004") == []


def test_the_newest_good_checkpoint_is_never_given_up_for_room(
    tmp_path: Path, small_disk: Callable[[int], None]
) -> None:
    policy = policy_of(load(LLAMA, 0, CPU))
    for step in (1, 2, 3):
        saved(policy, tmp_path, step)
    (tmp_path / "step_000003" / "trainer.json").write_text("{}")  # the newest is damaged
    small_disk(1)
    written = Saver(tmp_path, policy, 3).save(Position(4, 0, 0, 24))
    assert not written.done
    assert "step_000004 not written" in written.told
    newest, _ = checkpoints.newest_verified(tmp_path)
    assert newest == tmp_path / "step_000002"


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    policy = policy_of(load(LLAMA, 0, CPU))
    for step in (1, 2, 10, 3):
        saved(policy, tmp_path, step, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000003", "step_000010"]


def test_a_step_that_is_saved_again_replaces_itself(tmp_path: Path, rollouts_of: Rollouts) -> None:
    policy = policy_of(load(LLAMA, 0, CPU))
    saved(policy, tmp_path)
    train(policy, rollouts_of, 1, 1)
    folder = saved(policy, tmp_path)
    again = load(LLAMA, 0, CPU, folder / "policy")
    assert all(torch.equal(a, b) for a, b in zip(weights(again), weights(policy.model), strict=True))
    assert [path.name for path in tmp_path.iterdir()] == ["step_000003"]


def test_only_rank_0_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "RANK", 1)
    written = Saver(tmp_path, policy_of(load(LLAMA, 0, CPU)), 3).save(Position(3, 0, 0, 24))
    assert written.done
    assert list(tmp_path.iterdir()) == []
