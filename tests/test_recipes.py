"""Every recipe is made of whole runs: its `rlrun train` words resolve, and it passes on what it is given."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.config.resolve import resolve

RECIPES = sorted((Path(__file__).parents[1] / "recipes").glob("*.sh"))
EXTRA = {name: ["data.train_files=a.jsonl"] for name in ("sft", "dpo")}
NOTE_WORDS = f"#!{sys.executable}\nimport sys, json\nprint(json.dumps(sys.argv[1:]), file=open('words', 'a'))\n"


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipe_is_whole_runs_and_its_header_tells_date_hardware_and_result(recipe, tmp_path):
    program = tmp_path / "bin" / "rlrun"  # notes its words instead of training
    program.parent.mkdir()
    program.write_text(NOTE_WORDS)
    program.chmod(0o755)
    given = [*EXTRA.get(recipe.stem, []), "seed=7"]
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run([recipe, *given], cwd=tmp_path, env={**os.environ, "PATH": path}, check=True)
    runs = [json.loads(line) for line in (tmp_path / "words").read_text().splitlines()]
    assert runs
    for command, *words in runs:
        assert command == "train"
        assert resolve(words).seed == 7, "what the recipe is given is passed on"
    head = "\n".join(line for line in recipe.read_text().splitlines() if line.startswith("#"))
    assert re.search(r"Date \d{4}-\d\d-\d\d · hardware: .+ · result: .+", head) and os.access(recipe, os.X_OK)
