"""A checkpoint: training goes on from it as if it had never stopped, and others can read it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jobs
import pytest
import torch
from families import ids
from jobs import saved
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from launcher.algorithms.grpo import GRPO
from launcher.algorithms.sft import SFT
from launcher.core import checkpoints
from launcher.core.problems import Problems
from launcher.engines.torch.model.load import load_model
from launcher.engines.torch.model.network import CausalLM
from launcher.engines.torch.parallel import world
from launcher.engines.torch.train.batching import Limits
from launcher.engines.torch.train.policy import Policy
from launcher.engines.torch.train.save import Saver, TrainingPosition, load_optimizers
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
