"""Commands are loaded when they are typed, and what answers at once never loads torch and its like; what the group says
of commands is what they say of themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from launch_model import Model
from typer.testing import CliRunner

from launcher.cli.main import COMMANDS, CommandEntry, app, load
from launcher.config import recipe
from launcher.config.resolve import resolve
from launcher.core.activity import QUIET
from launcher.models import dry_load

HEAVY = ["torch", "transformers", "tokenizers", "safetensors", "ray", "vllm", "pyarrow", "pandas", "httpx2"]
OURS = ["hydra", "rich", "launcher.launch", "launcher.cli.commands"]
LOOK = f"""
import json, sys
from launcher.cli.main import app
for words in json.loads(sys.argv[1]):
    try:
        app(words, prog_name="rlrun")
    except SystemExit as end:
        code = end.code
    heavy = {HEAVY} + {OURS} * (words == ["--help"])
    print("loaded", code, [name for name in heavy if name in sys.modules], words, file=sys.stderr)
"""
WORDS = ["algorithm=grpo", "model=tiny", "data=reverse", "sampler.n=4"]
LIGHT = [
    ["--help"], ["train", "--help"], ["plan", *WORDS], ["plan", "--json", *WORDS], ["runs"], ["show", "r"],
    ["config", "show"], ["config", "show", "engine"], ["config", "diff", "r", "r"],
    ["watch", "r"], ["logs", "r"], ["stop", "r"], ["checkpoints", "r"], ["model", "--help"],
    ["model", "merge", "--help"], ["rerun", "--help"], ["plan", "-m", *WORDS, "seed=0,1"],
    ["plan", "algorithm=sft", "model=tiny", "data=files", "data.train_files=a.jsonl", "data.train_batch_size=1"],
]  # fmt: skip


def ran_here(script: str, *words: str, **more: Any) -> Any:
    return subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=True, **more)


def loaded_by(ran: Any) -> list[str]:
    """After each command of `LOOK`, its exit code and what it and those before it have loaded."""
    return [line for line in ran.stderr.splitlines() if line.startswith("loaded ")]


def test_nothing_heavy_is_loaded(tmp_path: Path) -> None:
    """And the group's help, which comes first, names all commands and loads none."""
    run = tmp_path / "runs" / "p" / "r"
    run.mkdir(parents=True)
    (run / "spec.yaml").write_text("")
    (tmp_path / "a.jsonl").write_text('{"prompt": "p", "response": "r"}\n')
    ran = ran_here(LOOK, json.dumps(LIGHT), cwd=tmp_path)
    assert loaded_by(ran) == [f"loaded 0 [] {words}" for words in LIGHT]
    flat = " ".join(ran.stdout.split())
    assert all(f" {entry.name} {entry.help} " in flat and f" {entry.panel}: " in flat for entry in COMMANDS)


def test_a_models_folder_is_compared_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found of its weights is remembered: neither this process nor another loads torch for them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Model().save(tmp_path / "m")
    with monkeypatch.context() as once:
        once.setattr(dry_load, "_in_a_process", lambda asked: {"expected": 21})
        assert dry_load.dry_load(tmp_path / "m", "AutoModelForCausalLM")
    words = ["plan", "algorithm=sft", "model=hf", "model.path=m", "data=reverse"]
    fails_if_asked = "import launcher.models.dry_load as d; d._in_a_process = None\n"
    ran = ran_here(fails_if_asked + LOOK, json.dumps([words]), cwd=tmp_path)
    assert loaded_by(ran) == [f"loaded 0 ['safetensors'] {words}"]  # it checks headers


CANARY = "canaryDontTell"
SECRETS = {
    "HF_TOKEN": CANARY, "WANDB_API_KEY": f"{CANARY}\n", "http_proxy": f"http://me:{CANARY}@127.0.0.1:9",
    "HF_ENDPOINT": f"http://me:{CANARY}@127.0.0.1:9", "RAY_AUTH_TOKEN": CANARY,
}  # fmt: skip


def test_a_plan_looks_at_this_machine(tmp_path: Path) -> None:
    """What is wrong is reported, with the rest, and decides the exit code; no secret is printed, no library loaded."""
    (tmp_path / "file").touch()
    env = {**os.environ, **SECRETS, "HOME": str(tmp_path)}  # no secret of the user's
    words = ["plan", "--json", *WORDS, "trainer.run_root=file/runs"]
    ran = ran_here(LOOK, json.dumps([words]), cwd=tmp_path, env=env, timeout=120)
    assert loaded_by(ran) == [f"loaded 2 [] {words}"], ran.stderr
    assert "canary" not in (ran.stdout + ran.stderr).lower()
    reported = json.loads(ran.stdout)
    assert reported["ok"] is False
    levels = {one["subject"]: one["level"] for one in reported["results"]}
    assert {what for what, level in levels.items() if level == "FAIL"} == {"trainer.run_root"}, levels
    assert {levels.get(what) for what in ("packages", "memory", "hardware")} == {"OK"}, levels
    for one in reported["results"]:
        assert one["message"]
        assert bool(one["fix"]) == (one["level"] != "OK"), "every result that is not OK has a fix"


@pytest.mark.parametrize("entry", COMMANDS, ids=lambda entry: entry.name)
def test_its_help_begins_with_what_the_group_says_and_its_examples_are_arguments(entry: CommandEntry) -> None:
    assert load(entry).help.startswith(entry.help)
    assert entry.help not in (getattr(load(entry).callback, "__doc__", "") or ""), "it stands once"
    for words in (example.split()[2:] for example in entry.examples):
        named = words[-1] in ("RUN", *recipe.known()) or words[-1].endswith(".sh")
        assert resolve(words) if "=" in words[0] else named


def test_a_slip_is_named_and_a_word_leads_to_the_command_that_has_it() -> None:
    for word, hint in (
        ("trian", "Did you mean 'train'"),
        ("resume", "see rlrun train --help"),
        ("merge", "rlrun model"),
    ):
        ran = CliRunner().invoke(app, [word])
        assert ran.exit_code == 2 and hint in ran.output


def test_a_shell_completes_names_and_options() -> None:
    for words, expected in (
        ("rlrun che", "checkpoints"),
        ("rlrun model mer", "merge"),
        ("rlrun train --res", "--resume"),
    ):
        env = {"_RLRUN_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
        ran = CliRunner().invoke(app, [], prog_name="rlrun", env=env)
        assert expected in ran.output.split(), (words, ran.output)


FIRST = """
import io, sys

class Seen(io.StringIO):
    def write(self, text):
        if text.strip() and not hasattr(self, "loaded"):
            self.loaded = [text.strip(), *sorted({name.split(".")[0] for name in sys.modules})]
        return super().write(text)

sys.stderr = seen = Seen()
from launcher.__main__ import main
try:
    main()
except SystemExit:
    pass
print("\\n", *getattr(seen, "loaded", ["nothing"]), sep="\\n")
"""


@pytest.mark.parametrize(
    ("words", "first"),
    [
        (["plan", "algorithm=sft"], "checking the settings"),
        (["plan", "algorithm=sft", "--json"], "nothing"),  # what follows is an answer for a program
        (["runs"], "nothing"),
    ],
)
def test_a_line_comes_before_anything_heavy_is_loaded(words: list[str], first: str) -> None:
    env = {name: value for name, value in os.environ.items() if name != QUIET}
    first_text, *loaded = ran_here(FIRST, *words, env=env).stdout.rpartition("\n\n")[2].splitlines()
    assert first_text == first
    assert not {"pydantic", "hydra", "omegaconf", "rich"} & {*loaded}
