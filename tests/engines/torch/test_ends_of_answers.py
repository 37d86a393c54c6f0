"""SFT on the tokenizer of a base model: held-out answers, transformers' and those of the next run end where ours do."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import jobs
import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from launcher.core.events import Step
from launcher.data.files import Files
from launcher.engines.torch.answer import Answerer, Sampling
from launcher.engines.torch.rollout.decode import Decoder
from launcher.engines.torch.rollout.generator import make_requests
from launcher.engines.torch.rollout.sampler import TorchSampler

CHATML = (
    "{% for turn in messages %}<|im_start|>{{ turn.role }}\n{{ turn.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ASSISTANT = "{% if add_generation_prompt %}<|assistant|>{% endif %}"
KINDS = {
    "base": (CHATML, "<EOS> <|im_end|>"),
    "several": ("{% for turn in messages %}{{ '<|user|>' if turn.role == 'user' else '<|assistant|>' }}"
                "{% if turn.thinking %}{{ turn.thinking }}<|end|><|assistant|>{% endif %}{{ turn.content }}"
                "{{ '<|return|>' if turn.role == 'assistant' and loop.last else '<|end|>' }}{% endfor %}" + ASSISTANT,
                "<EOS> <|return|>"),
}  # fmt: skip
ANSWERS = {"amber": "one", "birch": "two", "cedar": "one and two", "delta": "two twos"}
LONGEST = 24
"""Tokens of an answer that does not end."""


def tokenizer_of(template: str) -> PreTrainedTokenizerFast:
    """A token for each word of the answers, and for each special token of the template; another EOS, as a base model
    has."""
    special = ["<pad>", "<EOS>", "<unk>", *dict.fromkeys(re.findall(r"<\|\w+\|>", template))]
    words = sorted({"user", "assistant", "\n", " ", *" ".join([*ANSWERS, *ANSWERS.values()]).split()})
    made = Tokenizer(models.WordLevel({token: place for place, token in enumerate([*special, *words])}, "<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"\w+|\s"), "isolated")
    made.decoder = decoders.Fuse()
    made.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="<EOS>", unk_token="<unk>",
        clean_up_tokenization_spaces=False, chat_template=template,
    )  # fmt: skip


def save_model(folder: Path, template: str) -> None:
    """Random weights, with more rows in the embedding than the tokenizer has tokens."""
    tokenizer = tokenizer_of(template)
    config = AutoConfig.for_model(
        "llama", vocab_size=64, hidden_size=64, intermediate_size=96, head_dim=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=512,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def train(folder: Path, rows: Path, *words: str) -> tuple[Path, Mapping[str, float]]:
    """The saved policy, and the last step's metrics."""
    events = jobs.run(folder, [
        "model=hf", "data=files", f"data.train_files={rows}", f"data.val_files={rows}", "data.train_batch_size=8",
        f"data.max_response_length={LONGEST}", "reward=exact", *words,
    ])  # fmt: skip
    last = [event.metrics for event in events if isinstance(event, Step)][-1]
    return max((folder / "checkpoints").glob("*/policy")), last


def by_transformers(folder: Path, prompts: Sequence[list[int]]) -> list[list[int]]:
    model = AutoModelForCausalLM.from_pretrained(folder)
    return [model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), max_new_tokens=LONGEST,
                           do_sample=False)[0, len(ids) :].tolist() for ids in prompts]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_answers_end_where_the_template_ends_them(kind: str, tmp_path: Path) -> None:
    template, stops = KINDS[kind]
    save_model(tmp_path / "model", template)
    rows = tmp_path / "rows.jsonl"
    nodes = ({"prompt": asked, "response": answer, "ground_truth": answer} for asked, answer in ANSWERS.items())
    rows.write_text("".join(json.dumps(node) + "\n" for node in nodes) * 16)
    words = [f"model.path={tmp_path}/model", "trainer.total_training_steps=40", "algorithm=sft", "optim.lr=0.002"]
    saved, held_out = train(tmp_path, rows, *words, "trainer.val_before_train=false")
    assert held_out["val-core/rows/reward/mean@1"] > 0.9  # it was 0 where sampling waited for the tokenizer's EOS
    answerer = Answerer(saved, Files(), Sampling())
    assert {*answerer.model.tokenizer.convert_ids_to_tokens(answerer.model.eos)} == {*stops.split()}
    prompts = [answerer.encoder.prompt_ids(asked) for asked in ANSWERS]
    decoder = Decoder(answerer.model, TorchSampler(), LONGEST)
    ours = decoder.answer(make_requests(prompts, np.zeros(len(prompts), np.uint64)), 0.0)
    assert {text.strip() for text in decoder.texts(ours)} <= {*ANSWERS.values()}
    assert [one.turns[0].tokens for one in ours] == by_transformers(saved, prompts)
    if kind == "base":
        more = ["algorithm=grpo", "sampler.n=4", "trainer.total_training_steps=1", f"model.path={saved}"]
        _, after = train(tmp_path / "next", rows, *more)
        assert after["response_length/clip_ratio"] == 0
