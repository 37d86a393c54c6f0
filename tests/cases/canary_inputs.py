"""The secrets of tests/test_canaries.py, where each is planted, and the commands that meet them."""

from __future__ import annotations

import json
import os
import random
import string
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch_site import Site
from local_hub import Act, LocalHub
from local_servers import scoring

_rng = random.Random(time.time_ns())


def _text(length: int, letters: str = string.ascii_letters + string.digits) -> str:
    return "".join(_rng.choices(letters, k=length - 2)) + "4q"  # a digit and a letter, as of nearly every token


HEX = "0123456789abcdef"


@dataclass(frozen=True)
class Canary:
    name: str
    where: str
    value: str


def _of(*each: tuple[str, str, str]) -> tuple[Canary, ...]:
    return tuple(Canary(*one) for one in each)


ENVIRONMENT = _of(
    ("HF_TOKEN", "environment, of which all is printed", "hf_" + _text(34)),
    ("WANDB_API_KEY", "environment; printed by a training process", _text(38, HEX) + "4a"),
    ("MODELSCOPE_API_TOKEN", "environment, of which all is printed", f"ms-{_text(8, HEX)}-{_text(12, HEX)}"),
    ("SWANLAB_API_KEY", "environment; printed by a child of a training process", _text(21)),
    ("AWS_SECRET_ACCESS_KEY", "environment; in an exception of training", "wJ/" + _text(16) + "+/" + _text(18)),
    ("AWS_SESSION_TOKEN", "environment; in an exception, as in a URL", _text(60) + "==/+"),
    ("MY_DB_PASSWORD", "environment; in an exception of a reward", "correct-Horse!battery " + _text(6)),
    ("OPENAI_API_KEY", "environment; base64 in an exception of a reward", "sk-proj-" + _text(40)),
    ("JUDGE_TOKEN", "reward.token_env; echoed by the server", _text(32)),
    ("DEPLOY_KEY", "environment, of several lines; printed", "-----BEGIN PRIVATE KEY-----\n"
     + "\n".join(_text(60) for _ in range(3)) + "\n-----END PRIVATE KEY-----"),
    ("https_proxy", "login of a proxy; in an exception", _text(18)),
)  # fmt: skip
WORDS = _of(
    ("login in reward.url", "word", _text(14)),
    ("query of reward.url", "word", _text(20)),
    ("reward.kwargs.api_key", "word", "only-letters-" + _text(10, string.ascii_lowercase)),
    ("reward.kwargs, further down", "word", "swordfish" + _text(6, string.ascii_lowercase)),
    ("login in model.path", "word", _text(16)),
    ("login in data.train_files", "word", _text(16)),
    ("trainer.experiment_name", "word", "ghp_" + _text(36)),
    ("optim.lr", "word that is no number", "sk-" + _text(32)),
    ("a group that is none", "word", _text(22)),
    ("a word of --resume", "word", _text(26)),
    ("the name of a run", "word", "hf_" + _text(30)),
    ("login in data.prepare", "word", _text(16)),
)
SAID = _of(
    ("Authorization header", "exception of a reward, at its cut", _text(40)),
    ("a token in a bad row", "data file", "glpat-" + _text(20)),
    ("an id in a held-out row", "data file", "AKIA" + "".join(_rng.choices(string.ascii_uppercase, k=16))),
    ("a signed link", "redirect of a hub, to nowhere", _text(64, HEX)),
    ("a value in --config-dir", "config file", "xoxb-" + _text(30)),
    ("a run that others wrote", "its events and console", "eyJ" + _text(20) + ".eyJ" + _text(30) + "." + _text(30)),
)
CANARIES = (*ENVIRONMENT, *WORDS, *SAID)
VALUES = {canary.name: canary.value for canary in CANARIES}

REWARD = f"""
import base64, os
from urllib.parse import quote
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    which = sum(map(ord, ground_truth or "")) % 5
    if which == 0:
        raise RuntimeError("login failed: " + os.environ["MY_DB_PASSWORD"])
    if which == 1:
        raise ValueError(b"Basic " + base64.b64encode(b"me:" + os.environ["OPENAI_API_KEY"].encode()))
    if which == 2:
        raise KeyError("." * 240 + " Authorization: Bearer {VALUES["Authorization header"]}")
    if which == 3:
        raise OSError("GET https://s3/x?X-Amz-Security-Token=" + quote(os.environ["AWS_SESSION_TOKEN"], safe=""))
    return float(len(solution_str))
"""
ALGORITHM = """
import os
import subprocess
import sys
from launcher.algorithms import sft
from launcher.core.settings import settings

@settings
class SFT(sft.SFT):
    def loss(self, new, batch):
        print("wandb: logging in with", os.environ["WANDB_API_KEY"], dict(os.environ))
        subprocess.run(["sh", "-c", "echo key $SWANLAB_API_KEY; echo $DEPLOY_KEY >&2; printf '%s' \\"$DEPLOY_KEY\\""])
        os.write(2, b"from C: " + os.environ["AWS_SECRET_ACCESS_KEY"].encode() + b" no end of line")
        try:
            raise OSError("proxy " + os.environ["https_proxy"] + " refused")
        except OSError as error:
            raise RuntimeError("signing with " + os.environ["AWS_SECRET_ACCESS_KEY"] + " failed") from error
"""


@dataclass(frozen=True)
class Command:
    name: str
    words: tuple[str, ...]
    code: int


def _echo(answers: list[dict[str, Any]], headers: Mapping[str, str]) -> dict[str, Any]:
    """Scores right and empty answers, as a plan asks; refuses others, and tells whom."""
    if all(one["response"] == "" or one["ground_truth"] in one["response"] for one in answers):
        return {"scores": [len(one["response"]) for one in answers]}
    return {"error": "no such key", "got": headers.get("Authorization")}


@contextmanager
def plant(given: Path, hub: LocalHub) -> Iterator[str]:
    """Write the inputs, and yield the address of a server that repeats what it is told."""
    rows = [{"prompt": f"{number}", "response": f"{number}", "ground_truth": f"{number}"} for number in range(1, 17)]
    held = {**rows[0], "prompt": f"my id is {VALUES['an id in a held-out row']}, what is 1?"}
    bad = {"prompt": ["see", VALUES["a token in a bad row"]], "response": "x"}
    token, output = VALUES["a value in --config-dir"], VALUES["a run that others wrote"]
    events = [
        {"kind": "Started", "at": 1.0, "run": "theirs/old", "algorithm": "GRPO", "processes": 1},
        {"kind": "Alert", "at": 2.0, "step": 1, "text": f"token={output}"},
        {"kind": "Ended", "at": 3.0, "how": "failed", "why": f"401 for {output}"},
    ]
    tables = {"rows": rows, "bad": [*rows, bad], "held": [held], "runs/theirs/old/events": events}
    lines = {f"{name}.jsonl": "".join(json.dumps(row) + "\n" for row in table) for name, table in tables.items()}
    Site(given).build({"files": {
        **lines,
        "reward.py": REWARD,
        "planted_algorithm.py": ALGORITHM,
        "conf/algorithm/mine.yaml": "_target_: planted_algorithm.SFT\n",
        "conf/reward/own.yaml": f"_target_: launcher.rewards.python.Python\npath: {given}/reward.py\n"
                                f"kwargs: {{channel: {token}}}\n",
        "runs/theirs/old/spec.yaml": f"reward: {{headers: {{X: {output}}}}}\n",
        "runs/theirs/old/console.log": f"failed: 401 for {output}\n",
    }})  # fmt: skip
    link = f"http://127.0.0.1:9/cdn?X-Amz-Signature={VALUES['a signed link']}"
    hub.add("some/model", {"config.json": b"{}", "model.safetensors": b"x" * 100})
    hub.misbehave("model.safetensors", *[Act("redirect", to=link)] * 12)
    with scoring(_echo) as port:
        yield f"http://127.0.0.1:{port}"


def environment(home: Path, given: Path, hub: LocalHub, code: Path) -> dict[str, str]:
    found = {canary.name: canary.value for canary in ENVIRONMENT}
    found["https_proxy"] = f"http://me:{VALUES['https_proxy']}@127.0.0.1:9"
    plain = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    folders = {"HOME": str(home), "TMPDIR": str(home), "PYTHONPATH": f"{code}:{given}", "PYTHONDONTWRITEBYTECODE": "1"}
    return {**plain, **found, **folders, **hub.environment(), "no_proxy": "127.0.0.1,localhost"}


SMALL = (
    "model=tiny", "model.hidden_size=16", "model.num_hidden_layers=1", "model.intermediate_size=32",
    "engine.num_threads=1", "data.train_batch_size=8", "trainer.total_training_steps=1",
)  # fmt: skip


def commands(given: Path, server: str) -> list[Command]:
    rows = (f"data.train_files={given}/rows.jsonl", f"data.val_files={given}/held.jsonl")
    grpo = ("algorithm=grpo", "sampler.n=2", "data=files", *SMALL, *rows)
    asks = ("reward=remote", f"reward.url={server}", "reward.token_env=JUDGE_TOKEN", "reward.retries=0")
    mine = ("reward=python", f"reward.path={given}/reward.py", "reward.form=''")
    plan = ("plan", "algorithm=grpo", "model=tiny", "data=reverse", "sampler.n=2")
    values, conf = VALUES, ("--config-dir", f"{given}/conf")
    host = f"me:{values['login in reward.url']}@host"
    url = ("reward=remote", f"reward.url=http://{host}/s?api_key={values['query of reward.url']}")
    deep = (
        f"{{api_key: {values['reward.kwargs.api_key']}, inner: {{password: {values['reward.kwargs, further down']}}}}}"
    )
    files = f"data.train_files=https://me:{values['login in data.train_files']}@host/x.jsonl"
    return [
        Command("a plan with a server", (*plan, *url), 2),
        Command("the same as JSON", (*plan, *url, "--json"), 2),
        Command("a plan with arguments", (*plan, *mine, f"reward.kwargs={deep}"), 2),
        Command("a plan with a model", (*plan[:2], "data=reverse", "sampler.n=2", "model=hf",
                f"model.path=https://me:{values['login in model.path']}@host/x"), 2),
        Command("a plan with files", (*plan[:3], "sampler.n=2", "data=files", files), 2),
        Command("a name that is a token", ("train", *plan[1:],
                f"trainer.experiment_name={values['trainer.experiment_name']}"), 2),
        Command("wrong words", (*plan, f"optim.lr={values['optim.lr']}",
                f"wandb.api_key={values['a group that is none']}"), 2),
        Command("a config of one's own", (*plan, *conf, "reward=own"), 2),
        Command("a run that is not there", ("show", values["the name of a run"]), 2),
        Command("their runs", ("runs", "--root", f"{given}/runs"), 0),
        Command("their run", ("show", "old", "--root", f"{given}/runs"), 0),
        Command("their run as JSON", ("show", "old", "--root", f"{given}/runs", "--json"), 0),
        Command("their log", ("logs", "old", "--root", f"{given}/runs"), 0),
        Command("their events", ("logs", "old", "--root", f"{given}/runs", "--json"), 0),
        Command("going on with theirs", ("train", "--resume", "old", "--root", f"{given}/runs"), 2),
        Command("data check", ("data", "check", f"{given}/bad.jsonl", "--for", "answers"), 1),
        Command("data prepare",
                ("data", "prepare", f"{given}/bad.jsonl", "--for", "answers", "data.on_bad_row=skip"), 0),
        Command("data prepare of nothing", ("data", "prepare",
                f"https://me:{values['login in data.prepare']}@host/x.jsonl"), 2),
        Command("reward bench", ("reward", "bench", *mine, "data=files", *rows), 1),
        Command("model download", ("model", "download", "some/model"), 1),
        Command("training", ("train", *grpo, *asks, "trainer.experiment_name=one"), 0),
        Command("going on", ("train", "--resume", "one", f"reward.kwargs.token={values['a word of --resume']}"), 2),
        Command("training with a function", ("train", *grpo, *mine, "trainer.experiment_name=two"), 0),
        Command("a crash", ("train", *conf, "algorithm=mine", "data=files", *SMALL, *rows,
                "trainer.val_before_train=false", "trainer.experiment_name=three"), 1),
    ]  # fmt: skip
