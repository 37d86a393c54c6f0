"""Hostile arguments, files and folders: each is refused within a second, named with a fix, and leaves no trace."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from launcher.config.guard import check, secrets_in_run
from launcher.config.resolve import resolve
from launcher.core import redaction
from launcher.core.problems import Problems
from launcher.preflight import plan
from launcher.spec.stored import to_node
from launcher.tools.datasets import chosen

BASE = ["algorithm=grpo", "model=tiny", "data=reverse", "sampler.n=4"]
LEVELS = "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))
BOMB = f"a0: &a0 [{','.join('x' * 9)}]\n{LEVELS}"
DEEP = "[" * 5000
DOUBLED = "".join(f"a{n}: ${{algorithm.a{n + 1}}}${{algorithm.a{n + 1}}}\n" for n in range(40)) + "a40: x\n"
NAME = "a name of letters"
TARGET = "_target_ is named by config files only"
ENV = "is for config files only"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    redaction.secrets_of.cache_clear()
    yield tmp_path
    redaction._registered.clear()
    redaction.secrets_of.cache_clear()


Refused = Callable[[Callable[[], object]], list[str]]


@pytest.fixture
def refused(within: Callable[[float], AbstractContextManager[None]]) -> Refused:
    """The lines of a refusal, which takes far below a second: what hostile input could cost is minutes. The quickest
    of three counts, as the first may import much, and a machine may be slow for a moment."""

    def once(call: Callable[[], object]) -> list[str]:
        try:
            call()
        except Problems as problems:
            return problems.lines
        return []

    def lines(call: Callable[[], object]) -> list[str]:
        for _ in range(2):
            begin, found = time.process_time(), once(call)
            if time.process_time() - begin <= 1.0:
                return found
        with within(1.0):
            return once(call)

    return lines


WORDS = [
    # too much
    (["data.x=" + DEEP], "its brackets stand more than 64 deep"),
    (["data.x=" + "a" * 2**20], "has 1,048,583 characters"),
    ([f"--x{n}" for n in range(20_000)], "got 20,004 arguments"),
    ([f"--x{n}" for n in range(130)] + [f"data.x{n}=1" for n in range(130)], "got 264 arguments"),
    (["seed=" + "9" * 5000], "a number of more than 64 digits"),
    (["data.x=[" + "a," * 8000 + "a]"], "has 8,000 commas; use at most 512"),
    (["--x", "a," * 8000], "has 8,000 commas"), (["--" + "x" * 2**17], "has 131,077 characters"),
    (["--" + "x" * 2**13], "no group or setting"),
    (["sampler." + "x" * 2**13 + "=1"], "TorchSampler has no setting"),
    # a class
    (["algorithm._target_=os.system"], TARGET), (["+algorithm._target_=os.system"], TARGET),
    (["reward.kwargs={a: [{b: {_target_: x}}]}"], TARGET),
    # the environment, and what else reaches outside
    (["trainer.run_root=${oc.env:HF_TOKEN}"], ENV), (["trainer.run_root='${oc.env:HF_TOKEN}'"], ENV),
    (["trainer.run_root='${oc.${trainer.project_name}:HOME}'"], ENV), (["trainer.run_root=${ oc.env : HOME }"], ENV),
    (["+data@_global_=reverse"], "a choice has the name of its group"),
    # names
    (["trainer.experiment_name=../../x"], NAME), (["trainer.experiment_name=/etc/x"], NAME),
    (["trainer.experiment_name='раypal'"], NAME),  # Cyrillic letters that look Latin
    (["trainer.experiment_name='a\u202eb'"], NAME), (["trainer.experiment_name='a\nb'"], NAME),
    (["trainer.experiment_name='a\0b'"], NAME), (["trainer.project_name=../x"], NAME),
    (["trainer.run_root='a\u202eb'"], "invisible character"),
    (["trainer.run_root=" + "a" * 300], "file name too long"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "line"), WORDS, ids=[ascii(words[0])[1:50] for words, _ in WORDS])
def test_hostile_words(words: list[str], line: str, here: Path, refused: Refused) -> None:
    lines = refused(lambda: _planned([*BASE, *words]))
    assert [found for found in lines if line in found and "; " in found], lines
    assert all(len(found) < 700 for found in lines) and not list(here.iterdir())


def _planned(words: list[str], config_dir: Path | None = None) -> None:
    if found := plan.problems(resolve(words, config_dir)):
        raise Problems(found)


CLASS = "_target_: launcher.algorithms.grpo.GRPO\n"
CONFIGS = [
    (BOMB, "mine.yaml:5: stands for more than 20,000 values"),
    (f"{CLASS}x: {DEEP}", "mine.yaml:2: lists and groups stand more than 64 deep"),
    (CLASS + "x: " + "y" * 2**20, "mine.yaml:1: has 1,048,577 bytes"),
    (CLASS + "x: &x [*x]", "mine.yaml:2: *x stands within itself"),
    (CLASS + DOUBLED, "stand for more than 1,048,576 characters"),  # a bomb of interpolations
    (
        CLASS + f"big: {'x' * 900_000}\n" + "".join(f"a{n}: ${{algorithm.big}}\n" for n in range(500)),
        "stand for more than 1,048,576 characters",
    ),
    (CLASS + "".join(f"a{n}: ${{seed}}\n" for n in range(1_001)), "has 1,001 interpolations; use at most 1,000"),
    (CLASS + "x: ${algorithm.y}\ny: ${algorithm.x}\n", "stands within itself"),
    (CLASS + "kl_loss_coef: ${oc.env:HF_TOKEN}", "${oc.env:...}: is not for settings; write the value itself"),
    (CLASS + "kl_loss_coef: ${oc.select:algorithm.x,${oc.env:HF_TOKEN}}", "${oc.env:...}: is not for settings"),
    (CLASS + "x: ${oc.create:'[a]'}", "${oc.create:...}: is not for settings"),
    ("defaults: [{/data@x: '${oc.env:HF_TOKEN}'}]\n" + CLASS, "error resolving interpolation"),
    ("_target_: os.system", "os.system is not of class Algorithm"),
    (CLASS + "x: !!python/object/apply:os.system ['touch ran']", "mine.yaml:2: could not determine a constructor"),
]


@pytest.mark.parametrize(("text", "line"), CONFIGS, ids=[line[:40] for _, line in CONFIGS])
def test_hostile_config_files(
    text: str, line: str, here: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.setenv("HF_TOKEN", "0.5")
    folder = here / "conf" / "algorithm"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(text)
    lines = refused(lambda: _planned(["algorithm=mine", *BASE[1:]], here / "conf"))
    assert any(line in found for found in lines), lines
    assert [path.name for path in here.iterdir()] == ["conf"]


def test_what_a_config_may_read(here: Path) -> None:
    (here / "algorithm").mkdir()
    (here / "algorithm" / "mine.yaml").write_text(f"{CLASS}kl_loss_coef: ${{oc.select:algorithm.x,0.125}}\n")
    assert resolve(["algorithm=mine", *BASE[1:]], here).algorithm.kl_loss_coef == 0.125  # type: ignore[attr-defined]


def test_a_dataset_of_ones_own_is_read_within_bounds(here: Path, refused: Refused) -> None:
    (here / "data").mkdir()
    (here / "data" / "mine.yaml").write_text(BOMB)
    assert "stands for more than 20,000 values" in refused(lambda: chosen("mine", None, [], here))[0]


# ---- secrets where a run would keep them


def test_a_secret_among_the_settings_is_named_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "only-letters-of-mine")
    words = [*BASE, "trainer.run_root=a/only-letters-of-mine/b",
             "trainer.experiment_name=hf_AbCdEfGhIjKlMnOpQrStUvWxYz"]  # fmt: skip
    lines = [str(problem) for problem in secrets_in_run(to_node(resolve(words)))]
    wants = "holds a secret, which would be kept with the run; use an environment variable, read where it is used"
    names = ("experiment_name", "run_root")
    assert lines == [f"trainer.{name}: {wants}" for name in names]
    assert [str(problem) for problem in plan.problems(resolve(words))] == lines
    named_itself = resolve([*BASE, "reward=remote", "reward.url=http://me:pass-word@h/x"])
    assert [problem.where for problem in plan.problems(named_itself)] == ["reward.url"], "once"


def test_what_a_word_sets_by_a_secrets_name_is_not_said_again(here: Path, refused: Refused) -> None:
    word = "wandb.api_key=only-letters-of-mine"
    (line,) = refused(lambda: resolve([*BASE, word]))
    assert redaction.redact(f"{line} {word}").endswith("wandb.api_key=[secret]")


@pytest.mark.parametrize(
    ("word", "secret"),
    [("reward.token=[Zx9canary7Qp4LmB", "canary"), ("reward.token={a: [C7canary}", "canary"),
     ("reward.token={a: [C}", "C}"), ("reward.password=(correct horse C", "correct"),
     ("+reward.password='correct horse battery", "battery"),
     ("reward={token: [Zx9canary7Qp4LmB", "canary"), ("reward.password=hunter", "hunter"),
     # of an option, whatever it looks like
     ("--hub-token --c2VjcmV0LXRva2Vu", "c2VjcmV0"), ("--api_key part c2VjcmV0LXRva2Vu", "c2VjcmV0"),
     ("--api_key=c2VjcmV0LXRva2Vu=", "c2VjcmV0"), (f"--api_key {'c2VjcmV0LXRva2Vu' * 2000}", "c2VjcmV0")],
    ids=lambda value: value[:30],
)  # fmt: skip
def test_a_secret_that_cannot_be_read_is_not_said_either(word: str, secret: str, here: Path, refused: Refused) -> None:
    words = word.split(" ") if word.startswith("-") else [word]
    lines = refused(lambda: resolve([*BASE, *words]))
    assert lines and not [line for line in map(redaction.redact, lines) if secret in line], lines


def test_many_words_without_an_equals_sign_cost_little(within: Callable[[float], AbstractContextManager[None]]) -> None:
    with within(0.5):
        check(["a" * 16_000] * 50)


# ---- the real command


def test_the_command_refuses_at_once(commands: Any, here: Path) -> None:
    (here / "bomb" / "algorithm").mkdir(parents=True)
    (here / "bomb" / "algorithm" / "mine.yaml").write_text(BOMB)
    process = commands(here).begin("train", "--config-dir", "bomb", "algorithm=mine", *BASE[1:])
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    output = (here / "said").read_text()
    assert process.returncode == 2 and output.startswith("✗ ") and "Traceback" not in output, output[:2000]
    assert used.ru_utime + used.ru_stime <= 10  # minutes, or memory without end, where nothing were bounded
    assert sorted(path.name for path in here.iterdir()) == ["bomb", "said"]


def test_a_secret_of_a_reward_function_is_named_and_what_keeps_none_is_not() -> None:
    kwargs = {"api_key": "sk-1", "judge": {"auth_token": "x"}, "api_key.x": "v", "cookie": ""}
    kwargs |= {"max_tokens": 5, "tokenizer": "x", "author": "y", "response_key": "z", "token": 7}
    found = secrets_in_run({"reward": {"kwargs": kwargs}})
    assert [problem.where for problem in found] == [f"reward.kwargs.{name}" for name in
                                                    ("api_key", "judge.auth_token", "api_key.x")]  # fmt: skip
    assert {problem.code for problem in found} == {"not-permitted"}
