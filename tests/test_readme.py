"""README.md and the pages of docs/ show only what was run: their console blocks are run again and must say the same."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import get_args

from launcher.core.problems import Code

ROOT = Path(__file__).parents[1]
LONGEST_README = 140


def test_console_block_says_what_the_command_says(page, console_block, tmp_path):
    folder = str(Path(sys.executable).parent)
    env = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    for part in console_block.split("$ ")[1:]:
        command, _, expected = part.partition("\n")
        ran = subprocess.run(
            command, shell=True, cwd=tmp_path, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert ran.stdout == expected


def test_every_make_target_that_is_named_exists(page):
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"`?make ([a-z-]+)", page.text)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_every_link_leads_somewhere(page):
    for link in re.findall(r"\]\((?!https:)([^)#]+)(?:#[^)]*)?\)", page.text):
        assert (page.path.parent / link).exists(), link


def test_nothing_waits_to_be_filled_in(page, text_block):
    assert not re.fullmatch(r"[A-Z_]+\s*", text_block)


def test_ci_calls_the_test_command_that_is_named_here_and_builds_the_site_with_broken_links_as_errors():
    assert "make test" in (ROOT / "README.md").read_text()
    assert {"make test", "make site"} <= set((ROOT / ".ci" / "run").read_text().splitlines())
    makefile = (ROOT / "Makefile").read_text()
    (recipe,) = re.findall(r"^site:.*\n\t(.*)$", makefile, re.MULTILINE)
    assert "mkdocs build --strict" in recipe
    assert "--quiet" not in recipe, "it hides the warnings that --strict counts"


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= LONGEST_README


def test_the_ways_through_the_code_are_there():
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("## Five ways")[2].partition("\n## ")[0]
    named = re.findall(r"`([a-z_/]+(?:\.py|/))`", section)
    assert len(named) > 50 and not [name for name in named if not (ROOT / "launcher" / name).exists()]


def test_the_page_of_commands_events_and_metrics_is_up_to_date():
    """`make settings` writes it."""
    tables = runpy.run_path(str(ROOT / "docs" / "tables.py"))
    assert tables["page"]() == (ROOT / "docs" / "reference.md").read_text()


def test_every_code_of_a_problem_has_a_row_with_an_example_and_what_to_do():
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| `✗ [^`]+` \| (.+) \|$", page, re.MULTILINE))
    assert sorted(rows) == sorted(get_args(Code)) and all(rows.values())
