"""What is prepared here, verl 0.9.1 reads with its own dataset classes: equal rows, equal prompts, equal tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl")
from chats import CHATML, FAMILIES, tokenizer_of
from omegaconf import OmegaConf
from transformers import PreTrainedTokenizerFast
from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset
from verl.utils.dataset.rl_dataset import RLHFDataset

from launcher.data.files import Files
from launcher.data.prepare import prepare
from launcher.spec.algorithm import Kind
from launcher.spec.data import Row
from launcher.text.encoder import Encoder, Tokens

PROBLEMS = [
    {"question": 'Weng sold 48 clips.\nHow "many" é 中 😀?', "answer": "48/2 = <<48/2=24>>24\n#### 1,024"},
    {"question": "Betty has $100.", "answer": "100-5\n#### -95"},
    {"question": "Half of 1?", "answer": "0.5 it is\n#### 0.5"},
]
DIALOGUES = [
    {
        "prompt": "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: And\n\nmore?\n\nAssistant:",
        "chosen": " Yes.",
        "rejected": " No.",
    },
    {"prompt": "\n\nHuman: 2+2?\n\nAssistant:", "chosen": " 4", "rejected": " 5"},
]  # fmt: skip
TALKS = [
    {"messages": [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]},
    {"messages": [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Bye"},
        {"role": "assistant", "content": "Bye."},
    ]},
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, and the marks of turns."""
    made = tokenizer_of(FAMILIES["qwen2.5"])
    made.pad_token, made.chat_template = "<|endoftext|>", CHATML
    return made


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Prepares rows; the parquet file and our own reading of it."""
    monkeypatch.setenv("RLRUN_DATA", str(tmp_path / "store"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))

    def prepared(rows: list[dict[str, Any]], kind: Kind, format: Any) -> tuple[str, list[Row]]:
        source = tmp_path / "rows.jsonl"
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        files = Files(train_files=(str(source),), format=format)
        prepare(files, kind, made := tmp_path / "prepared", lambda _: None)
        read = Files(train_files=(str(made / "train.parquet"),))
        return read.train_files[0], [row for row in read.read("train", kind) if isinstance(row, Row)]

    return prepared


def of_verl(path: str, tokenizer: PreTrainedTokenizerFast, **more: Any) -> RLHFDataset:
    config = {"max_prompt_length": 4096, "filter_overlong_prompts": True, "filter_overlong_prompts_workers": 1, **more}
    return RLHFDataset(path, tokenizer, OmegaConf.create(config))


def turns(prompt: Any) -> list[dict[str, str]]:
    return [{"role": turn.role, "content": turn.content} for turn in prompt]


@pytest.mark.parametrize(
    ("rows", "kind", "format"),
    [(PROBLEMS, "prompts", "gsm8k"), (DIALOGUES, "pairs", "hh"), (DIALOGUES, "prompts", "hh")],
)
def test_rl_rows_and_prompts_are_equal(made: Any, tokenizer: Any, rows: Any, kind: Kind, format: Any) -> None:
    path, ours = made(rows, kind, format)
    theirs = of_verl(path, tokenizer)
    assert len(theirs) == len(ours) == len(rows)
    encoder = Encoder(tokenizer, Files(max_prompt_length=4096))
    for place, row in enumerate(ours):
        item = theirs[place]
        assert item["raw_prompt"] == turns(row.prompt)
        ids = tokenizer.apply_chat_template(
            item["raw_prompt"], add_generation_prompt=True, tokenize=True, return_dict=False
        )
        tokens = encoder.prompt(0, row)
        assert isinstance(tokens, Tokens)
        assert ids == tokens.ids
        assert (item["data_source"], item["ability"]) == (row.data_source, row.ability)
        assert item["extra_info"]["index"] == place == item["index"]
        if kind == "prompts":
            assert item["reward_model"]["ground_truth"] == row.ground_truth
        else:
            assert (item["chosen"], item["rejected"]) == (row.response, row.rejected)


def test_a_prompt_that_is_too_long_is_too_long_for_both(made: Any, tokenizer: Any) -> None:
    path, ours = made(PROBLEMS, "prompts", "gsm8k")
    encoder = Encoder(tokenizer, Files(max_prompt_length=110))
    fitting = [row for row in ours if isinstance(encoder.prompt(0, row), Tokens)]
    theirs = of_verl(path, tokenizer, max_prompt_length=110)
    assert 0 < len(fitting) < len(ours)
    assert [theirs[place]["raw_prompt"] for place in range(len(theirs))] == [turns(row.prompt) for row in fitting]


@pytest.mark.parametrize(
    ("rows", "format"), [(TALKS, "auto"), (PROBLEMS, "gsm8k"), ([{"prompt": "1+1?", "response": "2"}], "auto")]
)
def test_sft_rows_tokens_and_masks_are_equal(made: Any, tokenizer: Any, rows: Any, format: Any) -> None:
    path, ours = made(rows, "answers", format)
    theirs = MultiTurnSFTDataset(path, tokenizer, OmegaConf.create({"max_length": 2048, "pad_mode": "no_padding"}))
    encoder = Encoder(tokenizer, Files(max_prompt_length=2048, max_response_length=2048))
    assert len(theirs) == len(ours)
    for place, row in enumerate(ours):
        assert theirs.messages[place] == turns(row.prompt)
        item, tokens = theirs[place], encoder.demonstration(0, row)
        assert isinstance(tokens, Tokens)
        newline = tokenizer("\n", add_special_tokens=False).input_ids[0]
        # Theirs reads and learns the line's end after an answer, too; ours ends with the token that ends the answer.
        theirs_ids, learnt = item["input_ids"].tolist(), item["loss_mask"].tolist()
        size = len(theirs_ids) - (len(tokens.ids) < len(theirs_ids) and theirs_ids[-1] == newline)
        assert theirs_ids[:size] == tokens.ids
        both = zip(tokens.ids, learnt[:size], tokens.mask, strict=True)
        assert all(theirs == ours or token == newline for token, theirs, ours in both)
