"""Commands are loaded when they are typed; what the group says of them is what they say of themselves."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from launcher.cli.main import COMMANDS, CommandEntry, app, load
from launcher.config import recipe
from launcher.config.resolve import resolve
from launcher.core.activity import QUIET

LOOK = """
import sys
from launcher.cli.main import app
try:
    app(sys.argv[1:], prog_name="rlrun")
except SystemExit:
    pass
print("loaded", sorted(name for name in sys.modules if name.startswith("launcher.") or name in ("hydra", "rich")))
"""


@pytest.mark.parametrize("entry", COMMANDS, ids=lambda entry: entry.name)
def test_its_help_begins_with_what_the_group_says_and_its_examples_are_arguments(entry: CommandEntry) -> None:
    assert load(entry).help.startswith(entry.help)
    assert entry.help not in (getattr(load(entry).callback, "__doc__", "") or ""), "it stands once"
    for words in (example.split()[2:] for example in entry.examples):
        named = words[-1] in ("RUN", *recipe.known()) or words[-1].endswith(".sh")
        assert resolve(words) if "=" in words[0] else named


def test_the_groups_help_names_all_and_loads_none() -> None:
    ran = subprocess.run([sys.executable, "-c", LOOK, "--help"], capture_output=True, text=True, check=True)
    flat = " ".join(ran.stdout.split())
    assert all(f" {entry.name} {entry.help} " in flat and f" {entry.panel}: " in flat for entry in COMMANDS)
    loaded = ran.stdout.splitlines()[-1]
    assert not [name for name in ("hydra", "rich", "launcher.launch", "launcher.cli.commands") if name in loaded]


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
    ran = subprocess.run([sys.executable, "-c", FIRST, *words], capture_output=True, text=True, check=True, env=env)
    first_text, *loaded = ran.stdout.rpartition("\n\n")[2].splitlines()
    assert first_text == first
    assert not {"pydantic", "hydra", "omegaconf", "rich"} & {*loaded}
