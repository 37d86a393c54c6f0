"""`rlrun generate | chat`: answers equal transformers' own, and every way to ask gives the same ones."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from transformers import AutoConfig, AutoModelForCausalLM
from typer.testing import CliRunner

from launcher.cli.main import app
from launcher.core import checkpoints
from launcher.data.files import Files
from launcher.runs.folder import Folder
from launcher.spec.data import Row
from launcher.text.tokenizer import character_tokenizer
from launcher.tools import generate as asking

LETTERS = "abcdefgh:|"
TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}|{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)
TOKENS = ["--max-tokens", "12"]


def save(folder: Path, seed: int, template: str | None = TEMPLATE, positions: int = 64) -> None:
    tokenizer = character_tokenizer(LETTERS)
    tokenizer.chat_template = template
    torch.manual_seed(seed)
    config = AutoConfig.for_model(
        "qwen3", vocab_size=len(tokenizer), hidden_size=32, intermediate_size=40, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=positions,
        initializer_range=0.4, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run `r`, of two checkpoints, and the model folder `m`."""
    folder = tmp_path_factory.mktemp("models")
    run = Folder(folder / "runs" / "p" / "r")
    run.path.mkdir(parents=True)
    run.spec.write_text("data: {chat_template: auto}\n")
    for step in (1, 2):
        checkpoints.write(run.checkpoints, step, lambda place, seed=step: save(place / "policy", seed))  # type: ignore[misc]
    save(folder / "m", 2)
    return folder


@pytest.fixture
def home(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of `models`."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(models, tmp_path, dirs_exist_ok=True))


def ask(*words: str, command: str = "generate", typed: str | None = None) -> Result:
    return CliRunner().invoke(app, [command, *words], input=typed)


def replies(*words: str) -> list[dict[str, Any]]:
    ran = ask(*words, *TOKENS, "--json")
    assert ran.exit_code == 0, ran.stderr
    found: list[dict[str, Any]] = json.loads(ran.stdout)
    return found


def greedy(folder: Path, text: str) -> str:
    """What transformers itself answers."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), character_tokenizer(LETTERS)
    ids = torch.tensor([tokenizer(text).input_ids])
    made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)[
        0, ids.shape[1] :
    ]
    return tokenizer.decode([token for token in made.tolist() if token != tokenizer.eos_token_id])


def test_answers_equal_those_of_transformers(home: Path) -> None:
    expected = [greedy(home / "m", f"u:{prompt}|a:") for prompt in ("abc", "hgfe")]
    assert [node["response"] for node in replies("m", "abc", "hgfe")] == expected
    assert [node["response"] for node in replies("r", "abc", "hgfe")] == expected  # its newest checkpoint is the same
    assert replies("r", "abc", "--step", "1")[0]["response"] != expected[0]
    assert replies("m", "abc", "--system", "dd")[0]["response"] == greedy(home / "m", "s:dd|u:abc|a:")


def test_a_long_prompt_does_not_shorten_the_answers_to_others(home: Path) -> None:
    prompts = ["abc", "d" * 40, "hgfe", "c" * 40]
    sampled = ("--temperature", "1", "--seed", "3", "-n", "2", "--json")
    found: list[dict[str, Any]] = json.loads(ask("m", *prompts, *sampled).stdout)
    assert [node["prompt"] for node in found] == [prompt for prompt in prompts for _ in range(2)]
    lengths = [(node["tokens"], node["truncated"]) for node in found]
    assert max(tokens for tokens, _ in lengths[:2] + lengths[4:6]) > 64 - len("u:|a:") - 40
    for prompt, (tokens, cut) in zip([prompt for prompt in prompts for _ in range(2)], lengths, strict=True):
        room = 64 - len(f"u:{prompt}|a:")
        assert tokens <= room
        assert not cut or tokens == room
    single = json.loads(ask("m", prompts[0], *sampled).stdout)
    assert single == found[:2]


def test_one_answer_is_written_as_it_comes(home: Path) -> None:
    assert ask("m", "abc", *TOKENS).stdout == replies("m", "abc")[0]["response"] + "\n"


def test_a_talk_has_its_earlier_turns(home: Path) -> None:
    first = greedy(home / "m", "u:abc|a:")
    second = greedy(home / "m", f"u:abc|a:{first}|u:de|a:")
    ran = ask("m", *TOKENS, command="chat", typed="abc\nde\n\nabc\n")
    assert ran.stdout == f"{first}\n{second}\n{first}\n"


def test_without_a_template_each_line_stands_alone(home: Path) -> None:
    save(home / "plain", 2, None)
    ran = ask("plain", *TOKENS, command="chat", typed="abc\nde\n")
    assert ran.stdout == "".join(greedy(home / "plain", text) + "\n" for text in ("abc", "de"))


@pytest.fixture
def endless(home: Path) -> str:
    """A model that never ends an answer: all it writes is nearly equally likely, but for special tokens."""
    save(home / "endless", 2, positions=100_000)
    model = AutoModelForCausalLM.from_pretrained(home / "endless")
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = 50.0
        model.lm_head.weight[:, 0] = 0.0
        model.lm_head.weight[character_tokenizer(LETTERS).all_special_ids, 0] = -5.0
    model.save_pretrained(home / "endless")
    return "endless"


def test_a_chat_explains_its_keys_and_takes_no_command_for_a_prompt(home: Path) -> None:
    for typed in ("exit\n", "/exit\n", "quit\n", "/quit\n", ""):
        ran = ask("m", *TOKENS, command="chat", typed=typed)
        assert (ran.exit_code, ran.stdout) == (0, "") and "/help, /reset" in ran.stderr
    ran = ask("m", *TOKENS, command="chat", typed="/help\nabc\n/reset\nabc\n/hlep\n")
    first = greedy(home / "m", "u:abc|a:")
    assert ran.stdout == f"{first}\n{first}\n" and "there is no /hlep" in ran.stderr


def test_an_answer_that_repeats_itself_is_cut(endless: str) -> None:
    ran = ask(endless, "--max-tokens", "90000", command="chat", typed="abc\n")
    assert ran.exit_code == 0 and 240 <= len(ran.stdout) < 2_000 and "(cut: it repeats itself)" in ran.stderr


def test_ctrl_c_ends_an_answer_and_twice_the_chat(
    endless: str, home: Path, commands: Any, on_terminal: Any, until: Callable[..., None]
) -> None:
    words = ("chat", endless, "--temperature", "1", "--max-tokens", "90000")
    with closing(on_terminal(commands(home), *words, term="dumb")) as chat:
        for awaited, typed in (
            ("twice the chat\r\n> ", "abc\n"), ("abc\r\n", ""), ("a", "\x03"),  # it is written as it comes
            ("stopped; Ctrl-C again ends the chat", ""), ("> ", "/help\n"), ("/exit; Ctrl-C", ""), ("> ", "\x03"),
            ("Ctrl-C again ends the chat", ""), ("> ", "\x03"),
        ):  # fmt: skip
            until(lambda awaited=awaited: chat.sees(awaited))
            chat.press(typed)
        until(lambda: chat.sees("no more") or chat.process.poll() is not None)
        assert chat.process.returncode == 0


def test_answers_are_as_long_as_those_of_the_run(home: Path) -> None:
    (home / "runs" / "p" / "r" / "spec.yaml").write_text("data: {chat_template: auto, max_response_length: 3}\n")
    assert {node["tokens"] for node in json.loads(ask("r", "abc", "hgfe", "--json").stdout)} == {3}


def test_what_is_wrong_is_said_before_the_first_answer_and_no_file_is_replaced(home: Path) -> None:
    (home / "asked.jsonl").write_text(json.dumps({"prompt": "abc"}) + "\n" + json.dumps({"prompt": "a" * 99}) + "\n")
    ran = ask("m", "--file", "asked.jsonl", "--out", "answers.jsonl")
    assert (ran.exit_code, (home / "answers.jsonl").read_text()) == (2, "")
    assert "asked.jsonl:2: has 104 tokens" in ran.stderr
    ran = ask("m", "abc", "--out", "asked.jsonl")
    assert ran.exit_code == 2
    assert "asked.jsonl is there already" in ran.stderr
    assert ask("m", "abc", "--out", "no/answers.jsonl").exit_code == 2


def test_a_talk_that_is_too_long_begins_again(home: Path) -> None:
    ran = ask("m", "--max-tokens", "12", command="chat", typed="abc\n" * 5)
    assert ran.exit_code == 0
    assert "a new conversation begins" in ran.stderr
    assert ran.stdout.splitlines()[-1] == ran.stdout.splitlines()[0]


def test_rows_go_in_and_come_out_as_demonstrations(home: Path) -> None:
    with (home / "asked.csv").open("w") as file:
        csv.writer(file).writerows([["prompt"], ["abc"], ["fg"]])
    ran = ask("r", "--file", "asked.csv", "--out", "answers.jsonl", *TOKENS)
    assert (ran.exit_code, ran.stdout) == (0, "answers.jsonl  2 answers\n")
    rows = list(Files(train_files=(str(home / "answers.jsonl"),)).read("train", "answers"))
    expected = replies("r", "abc", "fg")
    assert [(row.prompt, row.response) for row in rows if isinstance(row, Row)] == [
        (node["prompt"], node["response"]) for node in expected
    ]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["q", "abc"], "'q': no run of that name"),
        (["m"], "PROMPT: is missing"),
        (["m", "abc", "--step", "1"], "--step: chooses a checkpoint of a run"),
        (["r", "abc", "--step", "7"], "--step: p/r has no checkpoint of step 7; it has 1, 2"),
        (["m", "abc", "-n", "2"], "-n: got 2, and at temperature 0 all answers are alike; add --temperature 1"),
        (["m", "abc", "--top-k", "0"], "--top-k: 0 leaves no token"),
        (["m", "abc" * 30], "prompt 1: has 95 tokens, and the model has 64 positions; use a shorter prompt"),
        (["m", "abc", "--max-tokens", "60"], "the model has 64 positions; use --max-tokens 56"),
        (["m", "--file", "no.jsonl"], "no.jsonl"),
        (["./nothing", "abc"], "./nothing: there is no folder 'nothing'"),
    ],
)
def test_what_cannot_be_answered_is_said(home: Path, words: list[str], named: str) -> None:
    ran = ask(*words)
    assert ran.exit_code == 2
    assert named in ran.stderr


def test_arguments_of_the_template_are_those_of_the_run_or_typed(home: Path) -> None:
    save(home / "m", 2, TEMPLATE.replace("a:{% endif", "a:{{ mark }}{% endif"))
    expected = greedy(home / "m", "u:abc|a:gh")
    assert replies("m", "abc", "--template-args", '{"mark": "gh"}')[0]["response"] == expected
    (home / "rows.jsonl").write_text(json.dumps({"prompt": "abc", "chat_template_kwargs": {"mark": "gh"}}) + "\n")
    assert replies("m", "--file", "rows.jsonl")[0]["response"] == expected
    run = Folder(home / "runs" / "p" / "r")
    run.spec.write_text("data: {chat_template: auto, template_args: {mark: gh}}\n")
    assert asking.choose("r", home / "runs", None, False, lambda *_: None).data.template_args == {"mark": "gh"}
    assert ask("m", "abc", "--template-args", "[1]").exit_code == 2
