"""Reading a dataset into memory: what is good is kept in order, what is not is counted and kept aside."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.config.resolve import resolve
from launcher.core.problems import Problems
from launcher.core.settings import settings
from launcher.data.refused import RefusedLog
from launcher.engines.torch import assemble
from launcher.engines.torch.train.sources import Rows, read_rows
from launcher.rewards.exact import Exact
from launcher.rewards.gsm8k import GSM8K
from launcher.rewards.length import Length
from launcher.spec.algorithm import Kind
from launcher.spec.data import Dataset, Message, RefusedRow, Row, Split
from launcher.spec.reward import Answer
from launcher.spec.stored import Prepared
from launcher.text.encoder import Encoder
from launcher.text.tokenizer import character_tokenizer

FOUND = {
    "train": [
        Row("f:1", "ab", "b", ground_truth="b", data_source="s", extra_info={"level": 3}),
        RefusedRow("f:2", "prompt is missing", '{"promt": "a"}'),
        Row("f:3", "aaaaaa", "b"),  # too long: found out only here
        Row("f:4", (Message("system", "a"), Message("user", "a")), "b"),  # a conversation, and there is no template
        Row("f:5", "b", "aa", ground_truth="aa"),
    ],
    "val": [Row("v:1", "a", "b"), RefusedRow("v:2", "response is empty", "{}")],
}


@settings
class Listed(Dataset):
    """Fake: the rows above."""

    def read(self, split: Split, kind: Kind) -> Iterator[Row | RefusedRow]:
        yield from FOUND[split]

    def has(self, split: Split) -> bool:
        return True

    def fingerprint(self) -> str:
        return ""


ANYTHING = Length(high=9)  # a reward that needs no truth
ENCODER = Encoder(character_tokenizer("ab"), Listed(max_prompt_length=5))


def test_good_rows_are_numbered_by_their_place_among_the_good(tmp_path: Path) -> None:
    with RefusedLog(tmp_path / "refused.jsonl") as log:
        found = read_rows(ENCODER, "train", "answers", log, ANYTHING)
    assert [row.where for row in found.rows] == ["f:1", "f:5"]
    assert [tokens.row for tokens in found.tokens] == [0, 1]
    assert found.refused == 3
    assert [tokens.ids for tokens in found.tokens] == [[3, 4, 4, 1], [4, 3, 3, 1]]  # a 3, b 4, end 1


def test_in_is_out_plus_refused_over_both_splits(tmp_path: Path) -> None:
    path = tmp_path / "refused.jsonl"
    with RefusedLog(path) as log:
        train, val = (read_rows(ENCODER, split, "prompts", log, ANYTHING) for split in ("train", "val"))
    assert (len(train.rows), train.refused, len(val.rows), val.refused) == (2, 3, 1, 1)
    assert (log.rows, log.good, log.refused) == (7, 3, 4)
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["where"], line["reason"]) for line in kept] == [
        ("f:2", "prompt is missing"),
        ("f:3", "prompt has 6 tokens; data.max_prompt_length is 5"),
        ("f:4", "is a conversation, and the tokenizer has no chat template; use a text prompt"),
        ("v:2", "response is empty"),
    ]
    assert kept[0]["raw"] == '{"promt": "a"}'
    assert "aaaaaa" in kept[1]["raw"]


def test_prompts_have_nothing_to_imitate() -> None:
    with RefusedLog(None) as log:
        found = read_rows(ENCODER, "train", "prompts", log, ANYTHING)
    assert [(tokens.ids, tokens.mask) for tokens in found.tokens] == [([3, 4], []), ([4], [])]


def test_counting_only_leaves_no_file(tmp_path: Path) -> None:
    with RefusedLog(None) as log:  # as on every process but the first
        assert read_rows(ENCODER, "train", "answers", log, ANYTHING).refused == 3
    assert list(tmp_path.iterdir()) == []


def test_an_answer_carries_what_is_known_of_its_row() -> None:
    with RefusedLog(None) as log:
        found = read_rows(ENCODER, "train", "prompts", log, ANYTHING)
    assert found.answer(0, "ba") == Answer("ba", "b", "s", {"level": 3}, "ab")
    assert found.answer(1, "x") == Answer("x", "aa", "unknown", {}, "b")


def test_prompts_that_the_reward_could_never_score_are_refused_by_name(tmp_path: Path) -> None:
    for split, kind, reward, expected in (
        ("train", "prompts", Exact(), ["f:3: has no ground truth, which reward Exact compares with", "f:4: has no"]),
        ("train", "prompts", GSM8K(), ["f:1: ground truth 'b' is not a number", "f:3: ", "f:4: ", "f:5: ground truth"]),
        ("train", "answers", GSM8K(), ["f:3: answer", "f:4: is a"]),  # demonstrations are not scored
        ("val", "prompts", GSM8K(), []),  # held out without a truth: not answered
    ):
        with RefusedLog(None) as log:
            read_rows(ENCODER, split, kind, log, reward)
        told = [line for line in map(str, log.first) if "is missing" not in line and "is empty" not in line]
        assert len(told) == len(expected) or kind == "answers"
        assert all(any(line.startswith(start) for line in told) for start in expected if kind != "answers"), told


def test_a_run_of_an_older_version_scores_rows_of_style_model_as_it_did(tmp_path: Path) -> None:
    row = {"prompt": "ab", "reward_model": {"style": "model", "ground_truth": "b"}}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    run = resolve(["algorithm=grpo", "model=tiny", f"data={tmp_path}/rows.jsonl", "sampler.n=2", "reward=exact"])
    node = json.loads(Prepared.from_local(run).to_json())
    encoder, file = Encoder(ENCODER.tokenizer, run.data), tmp_path / "prepared.json"
    file.write_text(json.dumps(node))
    with pytest.raises(Problems, match="style is model"):
        assemble._read(run, encoder, tmp_path / "refused.jsonl")
    del node["rows_have_styles"]  # as it was written before styles were regarded
    file.write_text(json.dumps(node))
    train, _ = assemble._read(run, encoder, tmp_path / "refused.jsonl")
    assert train.answer(0, "b").ground_truth == "b" and train.refused == 0


def test_nothing_is_shared_between_two_readings() -> None:
    with RefusedLog(None) as log:
        first, second = (read_rows(ENCODER, "val", "prompts", log, ANYTHING) for _ in range(2))
    assert len(first.rows) == len(second.rows) == 1
    assert Rows().rows == []
