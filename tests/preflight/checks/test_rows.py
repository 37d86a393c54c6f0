"""What a plan says of rows, read from real files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import launch_model
import pytest

from launcher.config.resolve import resolve
from launcher.preflight.checks import context as contexts
from launcher.preflight.checks import reward, rows
from launcher.preflight.checks.context import Context

Lines = Callable[..., list[str]]


@pytest.fixture
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lines:
    """What is said of a file with these rows."""
    monkeypatch.chdir(tmp_path)

    def lines(given: list[Any], *words: str, val: list[Any] | None = None, algorithm: str = "sft") -> list[str]:
        Path("train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in given))
        more = ["data.val_files=val.jsonl"] if val else []
        Path("val.jsonl").write_text("".join(json.dumps(row) + "\n" for row in val or []))
        named = {word.partition("=")[0] for word in words}
        base = [word for word in ("model=tiny", "sampler.n=2") if word.partition("=")[0] not in named]
        run = resolve([f"algorithm={algorithm}", "data=files", "data.train_files=train.jsonl", *base, *more, *words])
        context = Context(run, here=True)
        found = (*rows.check(context), *reward.check(context))
        return [f"{one.level} {one.line}" for one in found if one.subject != "held out"]

    return lines


GOOD = [{"prompt": f"p{n}", "response": "r"} for n in range(4)]


LONG = [*GOOD, {"prompt": "123456789", "response": "123"}]


def rewarded(*sources: str) -> list[dict[str, Any]]:
    return [{"prompt": f"{n}?", "data_source": source, "reward_model": {"ground_truth": "1"}}
            for n, source in enumerate(sources)]  # fmt: skip


MIXED = rewarded("openai/gsm8k", "openai/gsm8k", "openai/gsm8k", "gsm-8k", "mine")
VERL = {"need_tools_kwargs": True, "interaction_kwargs": {"name": "gsm8k"}}
GRPO = {"algorithm": "grpo", "val": [{**rewarded("gsm8k")[0], "prompt": "p"}]}
BEST = "trainer.best_metric=val-core/gsm"


@pytest.mark.parametrize(("given", "words", "more", "expected"), [
    (GOOD, [], {}, ["OK data: 4 rows", "OK lengths: all fit, as the longest prompt has 2 bytes"]),
    ([], [], {}, ["FAIL train.jsonl: the file is empty; use the complete file, with rows"]),
    ([*GOOD, {"prompt": 5}], [], {}, ["FAIL train.jsonl:5: ", "FAIL data.on_bad_row: 1 of 5 rows are bad; use skip"]),
    ([*GOOD, {"prompt": 5}], ["data.on_bad_row=skip"], {},
     ["WARN data train: 1 of 5 rows are bad and skipped, the first is train.jsonl:5: "]),
    (GOOD, [], {"val": [{"prompt": "new", "response": "r"}, GOOD[2]]},
     ["WARN data.val_files: 1 held-out prompts of 2 rows are also trained on (val.jsonl:2 is train.jsonl:3),"
      " so validation overestimates the model; use other rows"]),
    # characters are tokens: a prompt of 9 where 4 are allowed
    (LONG, ["data.max_prompt_length=4"], {}, ["FAIL data.max_prompt_length: 1 of 5 train prompts are longer than 4"
     " tokens (train.jsonl:5 is the first); use 9 or data.truncation=filter"]),
    (LONG, ["data.max_prompt_length=4", "data.truncation=filter"], {},
     ["WARN data.max_prompt_length: 1 of 5 train prompts are longer than 4 tokens"
      " (train.jsonl:5 is the first), and left out; use 9 to keep all"]),
    # the answer has an end of its own
    (LONG, ["data.max_response_length=2"], {}, ["FAIL data.max_response_length: 1 of 5 train responses are longer than"
     " 2 tokens (train.jsonl:5 is the first); use 4 or data.truncation=filter"]),
    (LONG, ["data.max_response_length=2", "data.truncation=right"], {},
     ["WARN data.max_response_length: 1 of 5 train responses are longer than 2"
      " tokens (train.jsonl:5 is the first), and cut on the right; use 4 to keep all"]),
    (MIXED, ["reward=auto"], {"algorithm": "grpo"}, [
        "OK data: 5 rows: openai/gsm8k 3, gsm-8k 1, mine 1",
        "FAIL train.jsonl:4: data_source 'gsm-8k' has no reward; did you mean gsm8k?",
        "FAIL train.jsonl:5: data_source 'mine' has no reward; ",
        "FAIL reward: 2 of 5 rows cannot be scored; use data.on_bad_row=skip",
    ]),
    (MIXED[:3], ["reward=gsm8k", f"{BEST}/reward/mean@1"], GRPO,
     ["WARN trainer.best_metric: val-core/gsm/reward/mean@1 is never measured: no held-out row gives it; did you"
      " mean val-core/gsm8k/reward/mean@1?"]),
    (MIXED[:3], ["reward=gsm8k", f"{BEST}8k/reward/mean@1"], GRPO, []),
    ([MIXED[0], {**MIXED[1], "extra_info": VERL}], ["reward=gsm8k"], {"algorithm": "grpo"},
     ["WARN environment: 1 of 2 rows have extra_info.interaction_kwargs (train.jsonl:2 is the first), and get one turn;"
      " choose what has their tools, such as environment=python"]),
    ([MIXED[0], {**MIXED[1], "extra_info": {"need_tools_kwargs": False, "interaction_kwargs": {"name": None}}}],
     ["reward=gsm8k"], {"algorithm": "grpo"}, []),
])  # fmt: skip
def test_what_is_said_of_rows(
    given: list[Any], words: list[str], more: dict[str, Any], expected: list[str], output: Lines
) -> None:
    found = [line for line in output(given, *words, **more) if expected or not line.startswith("OK")]
    positions = [next((at for at, line in enumerate(found) if line.startswith(each)), -1) for each in expected]
    assert -1 not in positions and positions == sorted(positions) if expected else found == []


def test_rows_that_are_left_out_for_their_length_do_not_count(tmp_path: Path, output: Lines) -> None:
    output([*GOOD, {"prompt": "123456789", "response": "123"}])
    words = ["algorithm=sft", "model=tiny", "data=files", "data.train_files=train.jsonl", "data.max_prompt_length=4"]
    assert Context(resolve([*words, "data.truncation=filter"]), here=True).steps.rows == 4


def test_a_conversation_needs_a_template(tmp_path: Path, output: Lines) -> None:
    turns = (("user", "a b"), ("assistant", "c"), ("user", "d"), ("assistant", "e"))
    talk = [{"messages": [{"role": role, "content": text} for role, text in turns]}]
    launch_model.Model(template=False).save(tmp_path / "bare")
    assert output(talk, "model=hf", f"model.path={tmp_path / 'bare'}")[1] == (
        "FAIL train.jsonl:1: 1 rows cannot be written with the model's chat template, the first: is a conversation, and"
        " the tokenizer has no chat template; use prompt and response"
    )
    launch_model.Model().save(tmp_path / "whole")
    words = ["data.max_prompt_length=9", "data.max_response_length=9"]
    found = output(talk, "model=hf", f"model.path={tmp_path / 'whole'}", *words)
    assert found[1] == "OK lengths train: prompts of at most 5 and responses of at most 7 tokens"


@pytest.mark.parametrize("words", [[], ["data.on_bad_row=skip"]])
def test_a_file_that_is_not_read_to_its_end(output: Lines, words: list[str]) -> None:
    Path("cut.csv").write_text('prompt,response\np,r\np\n"p,r\np,r\n')
    found = output([], "data.train_files=cut.csv", *words)
    assert found[0] == (
        "FAIL cut.csv:4: a quote that begins in this row is never closed; close it, or double each quote in a text;"
        " use the complete file, with rows"
    )
    assert any("1 of 3 rows are bad" in line for line in found)


def test_more_rows_than_a_plan_reads(output: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contexts, "MAX_ROWS", 3)
    assert output(GOOD)[0] == "OK data: 3 rows and more"
    words = ["algorithm=sft", "model=tiny", "data=files", "data.train_files=train.jsonl"]
    assert Context(resolve(words), here=True).steps.rows is None


@pytest.mark.parametrize(("words", "expected"), [
    (["algorithm=dpo", "data=gsm8k"], "FAIL data: the algorithm learns from pairs of a chosen and a rejected"),
    (["algorithm=sft", "data=full-hh-rlhf"], "use algorithm=dpo, or data.holds=answers"),
    (["algorithm=grpo", "data=ultrafeedback", "sampler.n=2"], "use algorithm=dpo, data=gsm8k or data=math, or"),
    (["algorithm=grpo", "data=ultrafeedback", "sampler.n=2", "reward=remote", "reward.url=http://a/b"], ""),
    (["algorithm=sft", "data=gsm8k"], ""),
])  # fmt: skip
def test_a_dataset_of_another_kind(words: list[str], expected: str) -> None:
    found = [f"{one.level} {one.line}" for one in rows.check(Context(resolve(["model=tiny", *words]), here=True))]
    assert any(expected in line for line in found) if expected else not any("FAIL" in line for line in found)


CHAT = '[{"role": "user", "content": "1+1=?"}]'


@pytest.mark.parametrize(("given", "words", "expected"), [
    ([{"prompt": CHAT, "response": str(n)} for n in range(4)], [],
     "FAIL train.jsonl:1: prompt is a conversation written as text; use a list"),
    ([{"frage": f"{n}", "id": n, "antwort": "x"} for n in range(4)], [],
     "rows are bad; use data.prompt_key=frage data.response_key=antwort"),
    ([{"id": "1", "Question text": "1+1?", "Correct": "2"}], [],
     "data.prompt_key='\"Question text\"' data.response_key=Correct"),
])  # fmt: skip
def test_what_helps_against_bad_rows(output: Lines, given: list[Any], words: list[str], expected: str) -> None:
    assert any(expected in line for line in output(given, *words))


@pytest.mark.parametrize(("text", "expected"), [
    ('[\n {"prompt": "p", "response": "r"}\n]\n', "mv other.jsonl rows.json"),
    ("{'prompt': 'p', 'response': 'r'}\n", "write one JSON object on each line, as json.dumps(row) does"),
    ('{\n "prompt": "p",\n "response": "r"\n}\n', "jq -c . other.jsonl > rows.jsonl"),
    ('{"prompt": "Wie heißt sie?", "response": "größer"}\n',
     "convert it to UTF-8 by iconv; file -i other.jsonl may tell its encoding"),
])  # fmt: skip
def test_what_makes_json_lines_of_another_file(output: Lines, text: str, expected: str) -> None:
    Path("other.jsonl").write_bytes(text.encode("WINDOWS-1252"))
    assert any(line.startswith("FAIL data.on_bad_row") and expected in line
               for line in output(GOOD, "data.train_files=other.jsonl"))  # fmt: skip


@pytest.mark.parametrize(("mark", "reward", "right"), [
    ("####", "exact", "gsm8k"), ("####", "math", "gsm8k"), ("\\boxed{}", "gsm8k", "math"), ("####", "gsm8k", ""),
])  # fmt: skip
def test_a_reward_that_does_not_read_what_the_prompts_ask_for(
    output: Lines, mark: str, reward: str, right: str
) -> None:
    given = [{"prompt": f"{n}+1? Put it after {mark}.", "ground_truth": str(n + 1)} for n in range(4)]
    found = [line for line in output(given, f"reward={reward}", algorithm="grpo") if line.startswith("WARN reward")]
    assert [f"use reward={right}," in line for line in found] == ([True] if right else [])
