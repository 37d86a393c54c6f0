"""A checkpoint's model for others: transformers and peft load it, and nothing half or damaged ever gets its name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from launcher.core import checkpoints
from launcher.core.problems import Problems
from launcher.runs import kept_checkpoints as keeping
from launcher.runs.folder import Folder
from launcher.text.tokenizer import character_tokenizer
from launcher.tools.export import Exported, export

IDS = torch.arange(3, 19).reshape(2, 8)
REWARD = "val-core/maths/reward/mean@1"


def tiny(seed: int) -> Any:
    torch.manual_seed(seed)
    config = AutoConfig.for_model(
        "qwen3", vocab_size=48, hidden_size=32, intermediate_size=40, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=64, bos_token_id=None, eos_token_id=1,
        pad_token_id=0,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config)


@pytest.fixture
def run(tmp_path: Path) -> Folder:
    folder = Folder(tmp_path / "runs" / "p" / "r")
    folder.path.mkdir(parents=True)
    folder.spec.write_text("")
    return folder


def save(run: Folder, step: int, fill: Callable[[Path], object]) -> Path:
    def into(folder: Path) -> None:
        fill(folder / "policy")
        character_tokenizer("abc").save_pretrained(folder / "policy")
        (folder / "state").mkdir()
        (folder / "state" / "optimizer.safetensors").write_bytes(b"not for others")
        measured = {"step": step, "metrics": {REWARD: 0.5}}
        (folder / "trainer.json").write_text(json.dumps({"validated": measured}))

    return checkpoints.write(run.checkpoints, step, into)


def exported(run: Folder, out: Path, **more: Any) -> Exported:
    return export(run, keeping.newest(run), out, lambda *_: None, **more)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits


def test_transformers_loads_it_and_says_the_same(run: Folder, tmp_path: Path) -> None:
    model = tiny(1)
    save(run, 2, lambda at: model.save_pretrained(at, max_shard_size="20KB"))
    heard: list[tuple[str, int, int]] = []
    made = export(run, keeping.newest(run), tmp_path / "out", lambda *one: heard.append(one))
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path / "out")), logits(model.eval()))
    assert (
        AutoTokenizer.from_pretrained(tmp_path / "out")("cab").input_ids == character_tokenizer("abc")("cab").input_ids
    )
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "config.json", "generation_config.json", "model.safetensors.index.json", "tokenizer.json",
        "tokenizer_config.json", *made.files,
    }  # fmt: skip
    assert len(made.files) > 1 and not made.adapter and heard[-1][1] > 0
    assert made.files == {name: checkpoints.sha256(tmp_path / "out" / name) for name in made.files}


def adapter(run: Folder, tmp_path: Path, *, beside: bool) -> Any:
    """A checkpoint of a LoRA run, its base in a folder of its own or `beside` the adapter."""
    tiny(1).save_pretrained(tmp_path / "base")
    made = get_peft_model(
        AutoModelForCausalLM.from_pretrained(tmp_path / "base"), LoraConfig(r=4, target_modules="all-linear")
    )
    for name, weight in made.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.2)

    def fill(at: Path) -> None:
        made.save_pretrained(str(at), save_embedding_layers=False)
        GenerationConfig(eos_token_id=[1, 5]).save_pretrained(at)
        if beside:
            tiny(1).save_pretrained(at / "base")

    save(run, 2, fill)
    return made.eval()


@pytest.mark.parametrize("beside", [True, False])
def test_an_adapter_is_exported_as_it_is_or_added_into_its_base(beside: bool, run: Folder, tmp_path: Path) -> None:
    model = adapter(run, tmp_path, beside=beside)
    plain = exported(run, tmp_path / "plain")
    assert plain.adapter and (tmp_path / "plain" / "base").is_dir() == beside
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "plain" / "base" if beside else tmp_path / "base")
    theirs = PeftModel.from_pretrained(base, str(tmp_path / "plain"))
    assert torch.equal(logits(theirs), logits(model))

    whole = exported(run, tmp_path / "whole", fold=True)
    assert not whole.adapter and not (tmp_path / "whole" / "adapter_config.json").exists()
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    assert found.generation_config.eos_token_id == [1, 5]
    torch.testing.assert_close(logits(found), logits(model), rtol=1e-4, atol=1e-5)
    assert not torch.equal(logits(found), logits(AutoModelForCausalLM.from_pretrained(tmp_path / "base")))


def refused(run: Folder, out: Path, **more: Any) -> list[str]:
    before = sorted(out.parent.iterdir())
    with pytest.raises(Problems) as found:
        exported(run, out, **more)
    assert sorted(out.parent.iterdir()) == before
    return found.value.lines


def test_what_cannot_be_exported(run: Folder, tmp_path: Path) -> None:
    at = save(run, 2, lambda at: tiny(1).save_pretrained(at))
    assert refused(run, tmp_path / "out", fold=True) == ["--merge: step 2 of p/r holds a whole model; leave it out"]
    assert refused(run, tmp_path / "out", base="x") == ["--base: has an effect only with --merge; leave it out"]
    assert refused(run, at / "policy" / "out") == [f"--out: {at}/policy/out overlaps with {at}; use another folder"]

    one = keeping.newest(run)
    weights = one.path / "policy" / "model.safetensors"  # changes after it was found to be good
    weights.write_bytes(weights.read_bytes()[:-1] + b"\7")
    with pytest.raises(Problems) as found:
        export(run, one, tmp_path / "out", lambda *_: None)
    assert found.value.lines == [f"{weights}: changed while it was copied; try again"]
    assert not (tmp_path / "out").exists()


def test_a_run_that_this_version_cannot_read(run: Folder, tmp_path: Path) -> None:
    """Only an engine with checkpoints of its own needs the run's settings."""
    at = save(run, 2, lambda at: tiny(1).save_pretrained(at))
    one = keeping.newest(run)
    (at / "policy").rename(at / "own")
    run.spec.write_text("nope: 2\n")
    with pytest.raises(Problems, match="nope: RunSpec has no setting 'nope'"):
        export(run, one, tmp_path / "out", lambda *_: None)
