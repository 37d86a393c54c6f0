"""Checkpoints, with adapters too: training goes on from them, others read them; and how far weights moved."""

from __future__ import annotations

import errno
import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import jobs
import pytest
import torch
from families import ids
from jobs import saved
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from launcher.algorithms.grpo import GRPO
from launcher.algorithms.sft import SFT
from launcher.core import checkpoints
from launcher.core.problems import Problems
from launcher.engines.torch.model.load import load_model
from launcher.engines.torch.model.network import CausalLM
from launcher.engines.torch.parallel import world
from launcher.engines.torch.train import movement
from launcher.engines.torch.train.batching import Limits
from launcher.engines.torch.train.clock import Clock
from launcher.engines.torch.train.movement import SAMPLED, distances, part_of, sample
from launcher.engines.torch.train.policy import Policy
from launcher.engines.torch.train.save import LastValidation, Saver, TrainingPosition, load_optimizers, read_position
from launcher.models.pretrained import Pretrained
from launcher.models.scratch import Scratch
from launcher.spec.run import Optim

CPU = torch.device("cpu")

LLAMA = Scratch(hidden_size=32, intermediate_size=48, num_key_value_heads=2)
TIED = Scratch(architecture="qwen3", hidden_size=32, intermediate_size=48, tie_word_embeddings=True)
BF16 = Scratch(hidden_size=32, intermediate_size=48, dtype="bfloat16")


def policy_of(model: CausalLM, algorithm: SFT | GRPO | None = None) -> Policy:
    optim = Optim(lr=1e-2, lr_warmup_steps=3, lr_scheduler_type="cosine")
    return jobs.policy_of(model, algorithm or SFT(), optim=optim, limits=Limits(4), steps=8)


def train(policy: Policy, first: int, last: int) -> list[dict[str, float]]:
    found = []
    for step in range(first, last + 1):
        batch = policy.algorithm.prepare(jobs.rollouts_of(policy.model, step), {})[0]
        found.append(dict(policy.update(batch, step).metrics))
    return found


def weights(model: CausalLM) -> list[torch.Tensor]:
    return [weight.detach().clone() for weight in model.module.parameters()]


# ---- going on


@pytest.mark.parametrize(
    ("spec", "algorithm"),
    [(LLAMA, GRPO()), (BF16, SFT()), (replace(LLAMA, lora_rank=4), SFT())],
    ids=["llama", "bfloat16", "adapters"],
)
def test_training_goes_on_to_the_last_bit(spec: Scratch, algorithm: SFT | GRPO, tmp_path: Path) -> None:
    policy = policy_of(load_model(spec, 0, CPU), algorithm)
    train(policy, 1, 3)
    folder = saved(policy, tmp_path)
    expected = train(policy, 4, 5)

    again = policy_of(load_model(spec, 0, CPU, folder / "policy"), algorithm)
    load_optimizers(again, folder)
    assert again.model.has_adapters == bool(spec.lora_rank)
    assert train(again, 4, 5) == expected
    assert all(torch.equal(a, b) for a, b in zip(weights(again.model), weights(policy.model), strict=True))


# ---- for others


@pytest.mark.parametrize("spec", [TIED, BF16], ids=["tied", "bfloat16"])
def test_plain_transformers_reads_the_policy(spec: Scratch, tmp_path: Path) -> None:
    model = load_model(spec, 0, CPU)
    model.tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    policy = policy_of(model)
    train(policy, 1, 2)
    path = saved(policy, tmp_path / "run" / "checkpoints") / "policy"
    theirs = AutoModelForCausalLM.from_pretrained(path)
    assert theirs.dtype == model.module.dtype
    assert theirs.config._attn_implementation == "sdpa"  # our own attention stays with us
    assert all(torch.equal(a, b) for a, b in zip(weights(model), theirs.parameters(), strict=True))
    model.module.eval()
    tokens = torch.tensor(ids(6, 6))
    with torch.no_grad():
        assert torch.equal(theirs(input_ids=tokens).logits, model.module(input_ids=tokens).logits)

    check_same_tokens(AutoTokenizer.from_pretrained(path), model.tokenizer)
    check_same_tokens(load_model(spec, 0, CPU, path).tokenizer, model.tokenizer)  # as training goes on
    check_same_tokens(load_model(Pretrained(path=str(tmp_path / "run")), 0, CPU).tokenizer, model.tokenizer)


def check_same_tokens(found: PreTrainedTokenizerFast, expected: PreTrainedTokenizerFast) -> None:
    text = "reverse, 12+3=15. ABC"
    assert found(text).input_ids == expected(text).input_ids
    assert found.decode(found(text).input_ids) == expected.decode(expected(text).input_ids)
    for name in ("pad_token_id", "eos_token_id", "unk_token_id", "chat_template"):
        assert getattr(found, name) == getattr(expected, name)


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
    first, origin = load_model(LLAMA, 0, CPU), tmp_path / "origin"
    first.module.save_pretrained(origin)
    first.tokenizer.save_pretrained(origin)
    config = json.loads((origin / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}}
    (origin / "config.json").write_text(json.dumps(config))
    (origin / "own.py").write_text(OWN_CODE)

    spec = Pretrained(path=str(origin), trust_remote_code=True)
    folder = saved(policy_of(load_model(spec, 0, CPU)), tmp_path / "checkpoints")
    again = load_model(spec, 0, CPU, folder / "policy")
    assert type(again.module).__name__ == "OwnModel"
    assert all(torch.equal(a, b) for a, b in zip(weights(again), weights(first), strict=True))
    with pytest.raises(Problems, match="cannot be loaded"):
        load_model(Pretrained(path=str(origin)), 0, CPU)  # nobody allowed it


UNSAVED = {"temperature": 0.9, "top_p": 0.6, "max_length": 4096}


@pytest.mark.parametrize(("rank", "more"), [
    *((rank, {"generation_config.json": {"eos_token_id": 1, "pad_token_id": 0, **UNSAVED}}) for rank in (0, 2)),
    (0, {"config.json": UNSAVED}),  # which transformers will not save
    (2, {"generation_config.json": None, "tokenizer_config.json": {"note": "x", "tokenizer_class": "GPT2Tokenizer"}}),
])  # fmt: skip
def test_what_came_with_a_model_is_saved_as_it_came(
    rank: int, more: dict[str, dict[str, Any] | None], tmp_path: Path
) -> None:
    first, origin = load_model(LLAMA, 0, CPU), tmp_path / "origin"
    first.module.save_pretrained(origin)
    first.tokenizer.save_pretrained(origin)
    for name, entries in more.items():
        text = json.dumps(json.loads((origin / name).read_text()) | (entries or {}))  # laid out as nobody else would
        (origin / name).write_text(text) if entries is not None else (origin / name).unlink()
    texts = {path.name: path.read_bytes() for path in origin.glob("*.json")}
    if rank:
        del texts["config.json"]  # peft's is another
    spec = Pretrained(path=str(origin), lora_rank=rank)
    policy = saved(policy_of(load_model(spec, 0, CPU)), tmp_path / "checkpoints") / "policy"
    assert {name: (policy / name).read_bytes() for name in texts} == texts
    again = saved(policy_of(load_model(spec, 0, CPU, policy)), tmp_path / "again") / "policy"
    assert {name: (again / name).read_bytes() for name in texts} == texts
    stopped = load_model(spec, 0, CPU)
    stopped.stop_at([5])
    policy = saved(policy_of(stopped), tmp_path / "stopped") / "policy"
    named = json.loads((policy / "generation_config.json").read_text())
    assert named == json.loads(texts.get("generation_config.json", json.dumps(named))) | {"eos_token_id": [1, 5]}


def test_no_pickle_anywhere(tmp_path: Path) -> None:
    policy = policy_of(load_model(LLAMA, 0, CPU))
    train(policy, 1, 1)
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


def test_only_rank_0_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "RANK", 1)
    written = Saver(tmp_path, policy_of(load_model(LLAMA, 0, CPU)), 3).save(TrainingPosition(3, 0, 0, 24))
    assert written.done
    assert list(tmp_path.iterdir()) == []


TINY = Scratch(hidden_size=16, intermediate_size=24, num_hidden_layers=1, dtype="float64", lora_rank=4)


def held(policy: Policy, *, adapters: bool = True) -> dict[str, torch.Tensor]:
    """Copies of the adapters, or of the weights under them."""
    named = policy.model.named_parameters()
    return {name: weight.detach().clone() for name, weight in named if ("lora_" in name) is adapters}


@pytest.mark.parametrize("kind", ["dpo", "ppo"])
def test_every_algorithm_trains_adapters_and_nothing_else(kind: str) -> None:
    policy: Policy = jobs.policy_for(kind, "float64", Limits(5), lora_rank=4)
    before, weights = held(policy), held(policy, adapters=False)
    assert len(before) == 2 * 7  # two matrices beside each of a layer's seven
    metrics, _ = jobs.train_until(policy, 1, {})
    assert all(update[f"{policy.prefix}/skipped_nonfinite"] == 0.0 for update in metrics)
    after = held(policy)
    assert all(not torch.equal(after[name], value) for name, value in before.items())
    assert all(torch.equal(held(policy, adapters=False)[name], value) for name, value in weights.items())
    assert {id(weight) for weight in policy.actor.weights} == {
        id(weight) for name, weight in policy.model.named_parameters() if "lora_" in name
    }


def test_the_reference_is_the_policy_without_its_adapters() -> None:
    policy: Policy = jobs.policy_for("grpo", "float64", Limits(16), lora_rank=4)
    jobs.train_until(policy, 1, {})
    batch = policy.annotate(jobs.rollouts_of(policy.model, 2), Clock(), on_policy=False)
    plain = jobs.policy_for("grpo", "float64", Limits(16))  # the same weights, and none beside them
    expected = plain.annotate(jobs.rollouts_of(plain.model, 2), Clock(), on_policy=False)
    assert torch.equal(batch.reference, expected.old)
    assert (batch.old - batch.reference).abs().max() > 1e-4
    again = policy.annotate(jobs.rollouts_of(policy.model, 2), Clock(), on_policy=False)
    assert torch.equal(again.old, batch.old)  # they are on again afterwards


# ---- checkpoints


def trained(model: Scratch | Pretrained = TINY) -> Policy:
    policy: Policy = jobs.policy_of(load_model(model, 0, CPU), jobs.SFT(), optim=jobs.Optim(lr=1e-2))
    for step in (1, 2):
        policy.update(jobs.rollouts_of(policy.model, step), step)
    return policy


def logits(module: torch.nn.Module) -> torch.Tensor:
    module.eval()
    with torch.no_grad():
        return module(input_ids=torch.arange(3, 12)[None], use_cache=False).logits


def test_pefts_own_reader_finds_the_same_model(tmp_path: Path) -> None:
    policy = trained()
    policy.model.stop_at([5])
    policy.model.keep_base = True
    folder = saved(policy, tmp_path) / "policy"
    assert {path.name for path in folder.iterdir()} >= {"adapter_config.json", "adapter_model.safetensors", "base"}
    assert not (folder / "model.safetensors").exists()
    assert json.loads((folder / "adapter_config.json").read_text())["r"] == 4
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [1, 5]
    assert all("lora_" in name for name in load_file(folder / "adapter_model.safetensors"))
    base = AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float64)
    plain = logits(base)
    theirs = logits(PeftModel.from_pretrained(base, str(folder)))
    assert (theirs - logits(policy.model.module)).abs().max() <= 1e-12
    assert (plain - theirs).abs().max() > 1e-6
    assert (plain - logits(load_model(TINY, 0, CPU, adapt=False).module)).abs().max() <= 1e-12  # as it was


def test_of_weights_that_stand_elsewhere_no_copy_is_kept(tmp_path: Path) -> None:
    origin = load_model(TINY, 0, CPU, adapt=False)
    origin.module.save_pretrained(tmp_path / "origin")
    origin.tokenizer.save_pretrained(tmp_path / "origin")
    policy = trained(Pretrained(path=str(tmp_path / "origin"), dtype="float64", lora_rank=4))
    policy.model.keep_base = False
    folder = saved(policy, tmp_path / "run" / "checkpoints")
    assert not (folder / "policy" / "base").exists()
    config = json.loads((folder / "policy" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(tmp_path / "origin")
    merged = load_model(Pretrained(path=str(tmp_path / "run"), dtype="float64"), 0, CPU)
    assert (logits(merged.module) - logits(policy.model.module)).abs().max() <= 1e-12


def test_adapters_upon_adapters_lose_nothing(tmp_path: Path) -> None:
    """Weights A, adapters B upon A, adapters C upon A + B: who loads C gets all three."""
    model: Scratch | Pretrained = replace(TINY, lora_rank=0)
    for name in "abc":
        policy = trained(model)
        folder = saved(policy, tmp_path / name / "checkpoints") / "policy"
        model = Pretrained(path=str(tmp_path / name), dtype="float64", lora_rank=4)
    assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == "base"
    assert (folder / "base" / "config.json").is_file()
    found = logits(load_model(replace(model, lora_rank=0), 0, CPU).module)
    assert (found - logits(policy.model.module)).abs().max() <= 1e-9


REWARD, LOSS = "val-core/reverse/reward/mean@1", "val/loss"


@pytest.fixture
def policy() -> Policy:
    return policy_of(load_model(replace(TINY, lora_rank=0), 0, CPU))


def at(step: int, score: float | None, name: str = REWARD) -> TrainingPosition:
    """Where training stands after a step; its latest validation is of this step where it has a score."""
    seen = LastValidation(0, {name: 9.0}) if score is None else LastValidation(step, {name: score})
    return TrainingPosition(step, 2**62, 3, 24, {"actor/reward_kl_penalty": 0.1 + 0.2}, seen)


def kept(root: Path) -> list[int]:
    return sorted(map(checkpoints.step_of, checkpoints.newest_first(root)))


@pytest.mark.parametrize(
    ("scores", "name", "more", "stay"),
    [
        ([0.9, 0.1, 0.2, 0.3], REWARD, {}, [1, 4]),
        ([0.9, 0.1, 0.2, 0.3], LOSS, {}, [2, 4]),  # less is better
        ([0.9, None, None, 0.3], REWARD, {}, [1, 4]),  # a validation of long ago says nothing of these weights
        ([math.nan, 0.1, 0.2, 0.3], REWARD, {}, [4]),
        ([0.9, 0.8, 0.2, 0.3], REWARD, {"best": 2}, [1, 2, 4]),
    ],
)
def test_the_best_stays_beside_the_newest(
    scores: list[float | None], name: str, more: dict[str, Any], stay: list[int], tmp_path: Path, policy: Policy
) -> None:
    for step, score in enumerate(scores, 1):
        written = Saver(tmp_path, policy, 1, **more).save(at(step, score, name))  # as after a resume each time
        assert (written.done, written.message) == (True, "")
    assert kept(tmp_path) == stay


def test_a_checkpoint_says_how_good_it_is(tmp_path: Path, policy: Policy) -> None:
    position = at(3, math.nan)
    assert Saver(tmp_path, policy, 3).save(position).done
    folder = tmp_path / "step_000003"
    strict = lambda word: pytest.fail(f"{word} is no JSON")
    json.loads((folder / "trainer.json").read_text(), parse_constant=strict)
    found = read_position(folder)
    assert found.validated.step == 3 and math.isnan(found.validated.metrics[REWARD])
    assert Saver(tmp_path, policy, 3).save(at(4, 0.5)).done
    assert read_position(tmp_path / "step_000004") == at(4, 0.5)


def full_at(monkeypatch: pytest.MonkeyPatch, root: Path, count: int) -> None:
    """A disk with room for `count` checkpoints: beyond that nothing more becomes durable."""

    def sync(path: Path) -> None:
        if len(checkpoints.newest_first(root)) >= count:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(checkpoints, "fsync_path", sync)


def test_on_a_full_disk_the_best_and_the_newest_stay_and_the_others_make_room(
    tmp_path: Path, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step, score in enumerate([0.1, 0.9, 0.2, 0.3], 1):
        assert Saver(tmp_path, policy, 9).save(at(step, score)).done
    full_at(monkeypatch, tmp_path, 4)
    written = Saver(tmp_path, policy, 9).save(at(5, 0.2))
    assert written.message.startswith("step_000005 written only after removing step_000003, step_000001: ")
    assert kept(tmp_path) == [2, 4, 5]
    full_at(monkeypatch, tmp_path, 2)
    written = Saver(tmp_path, policy, 9).save(at(6, 0.2))
    assert not written.done and "removing step_000004 made too little room" in written.message
    assert kept(tmp_path) == [2, 5]
    written = Saver(tmp_path, policy, 9).save(at(7, 0.2))
    assert not written.done and written.message.startswith("step_000007 not written: ")
    assert kept(tmp_path) == [2, 5]  # the best and the newest good one are never given up, even for a newer


# ---- how far weights moved


PARTS = {
    "module.transformer.wte.weight": "embedding",
    "module.model.layers.0.self_attn.q_proj.weight": "attention",
    "module.model.layers.0.self_attn.q_norm.weight": "norms",
    "module.transformer.h.0.ln_1.weight": "norms",
    "module.model.layers.0.mlp.experts.gate_up_proj": "mlp",
    "module.lm_head.weight": "head",
    "module.base_model.model.model.layers.0.self_attn.q_proj.lora_B.default.weight": "lora_B",
    "module.model.layers.0.conv.weight": "other",
}


def test_a_weight_belongs_to_a_part() -> None:
    assert {name: part_of(name) for name in PARTS} == PARTS


def test_a_sample_says_how_far_a_large_weight_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = jobs.policy_for("sft", "float64", jobs.Limits(16))
    begun = [weight.detach().clone() for weight in policy.actor.weights]
    whole = sample(policy.actor.network)
    monkeypatch.setattr(movement, "SAMPLED", 64)
    policy.actor.start = sample(policy.actor.network)
    assert set(distances(policy.actor).values()) == {0.0}
    for weight in policy.actor.weights:
        weight.data += 0.1 * torch.randn(weight.shape, dtype=torch.float64, generator=torch.manual_seed(0))
    estimated = distances(policy.actor)
    assert sum(len(x) for x in policy.actor.start.values()) < sum(weight.numel() for weight in begun) / 2
    monkeypatch.setattr(movement, "SAMPLED", SAMPLED)
    policy.actor.start = whole
    assert estimated == pytest.approx(distances(policy.actor), rel=0.3)
    assert set(estimated) == {"embedding", "attention", "mlp", "norms", "head"}


@pytest.mark.parametrize("start", [True, False])
def test_a_resumed_run_measures_from_its_beginning(start: bool, tmp_path: Path) -> None:
    policy = jobs.policy_for("sft", "float64", jobs.Limits(16))
    policy.actor.start = sample(policy.actor.network) if start else None  # as in an older checkpoint
    jobs.train_until(policy, 1, {})
    before = distances(policy.actor)
    assert bool(before) == start and all(x > 0 for x in before.values())
    Saver(tmp_path, policy, 3).save(TrainingPosition(1, 0, 0, 24))
    policy.actor.start = sample(policy.actor.network)  # of the weights that it goes on with
    load_optimizers(policy, next(tmp_path.iterdir()))
    assert distances(policy.actor) == before
