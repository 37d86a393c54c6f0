"""README shows only what was run: its console blocks are run again and must say the same."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.config.resolve import resolve

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
TRAIN = re.findall(r"^rlrun train (algorithm=.*)$", README, re.MULTILINE)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[0])
def test_console_block_says_what_the_command_says(block, tmp_path):
    folder = str(Path(sys.executable).parent)
    env = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    for part in block.split("$ ")[1:]:
        command, _, expected = part.partition("\n")
        ran = subprocess.run(
            command, shell=True, cwd=tmp_path, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert ran.stdout == expected


@pytest.mark.parametrize("words", TRAIN)
def test_train_words_resolve(words):
    assert resolve(shlex.split(words))


def test_every_make_target_that_is_named_exists():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"`?make ([a-z-]+)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_every_link_leads_somewhere():
    for link in re.findall(r"\]\((?!https:)([^)#]+)\)", README):
        assert (ROOT / link).exists(), link


def test_ci_calls_the_test_command_that_is_named_here():
    assert "make test" in README
    assert re.search(r"^make test$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)


def test_nothing_waits_to_be_filled_in():
    for block in re.findall(r"```text\n(.*?)```", README, re.DOTALL):
        assert not re.fullmatch(r"[A-Z_]+\s*", block)
