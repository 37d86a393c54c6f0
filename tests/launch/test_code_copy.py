"""A run reads copies of its own Python files: edits outside change nothing until a resume names the file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from launcher.launch import code_copy
from launcher.rewards.combined import Weighted
from launcher.rewards.exact import Exact
from launcher.rewards.python import Python
from launcher.runs.folder import Folder
from launcher.spec.reward import Answer, Reward, score_safely

MINE = {
    "my.py": "from helpers import half\nfrom rules.marks import full\n\ndef f(data_source, solution_str, ground_truth,"
    " extra_info=None):\n    import late\n    return full() * half(solution_str) + late.ZERO\n",
    "helpers.py": "import json, my\n\ndef half(text):\n    return len(text) / 2\n",
    "rules/marks.py": "from pathlib import Path\nfrom . import deeper\nfrom .deeper import ONE\n\ndef full():\n"
    "    return ONE * float(Path(__file__).with_name('full.txt').read_text())\n",
    "rules/deeper.py": "ONE = 1\n",
    "rules/full.txt": "3",
    "late.py": "ZERO = 0\n",
    "unused.py": "nothing imports it\n",
}
COPIED = ["helpers.py", "late.py", "my.py", "rules/deeper.py", "rules/marks.py"]
WORDS = Answer("four")


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    (folder / "rules").mkdir(parents=True)
    for name, text in MINE.items():
        (folder / name).write_text(text)
    return folder


def kept(reward: Reward, folder: Folder) -> Reward:
    """As the run's processes read it."""
    found, notes = code_copy.keep(reward, folder)
    assert notes == []
    return found.within(folder.path)


def names(copy: Path) -> list[str]:
    return sorted(str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file())


def test_what_it_imports_from_its_folder_is_copied_and_read_whatever_becomes_of_the_originals(
    mine: Path, folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reward = kept(Python(path=str(mine / "my.py"), name="f"), folder)
    assert names(folder.code) == [f"reward/{name}" for name in COPIED]
    assert score_safely(reward, [WORDS]).total == [6.0]
    assert names(mine) == sorted(MINE), "no bytecode is left beside the originals"
    for name in ("my.py", "helpers.py", "rules/deeper.py"):
        (mine / name).write_text("raise SystemExit('changed')\n")
    (mine / "late.py").unlink()
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(other)  # as on another node
    assert score_safely(reward, [WORDS]).total == [6.0]
    shutil.copytree(folder.path, other / "moved")
    shutil.rmtree(folder.path)
    moved = Weighted(parts={"mine": Python(path="code/reward/my.py", name="f", copied_from=str(mine))})
    assert score_safely(moved.within(other / "moved"), [WORDS]).total == [6.0]


def test_an_equal_copy_is_made_once(mine: Path, folder: Folder) -> None:
    python = Python(path=str(mine / "my.py"), name="f")
    first = kept(Weighted(parts={"a": python, "b": Exact(), "c": python}), folder)
    assert isinstance(first, Weighted) and first.parts["a"] == first.parts["c"]
    (mine / "late.py").write_text("ZERO = 1\n")
    assert score_safely(kept(python, folder), [WORDS]).total == [7.0]
    assert [path.name for path in sorted(folder.code.iterdir())] == ["reward", "reward-2"]
    assert score_safely(first.parts["a"], [WORDS]).total == [6.0]


def test_secrets_and_large_files_are_not_copied(mine: Path, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    python = Python(path=str(mine / "my.py"), name="f")
    (mine / "late.py").write_text(f"ZERO = 0\nKEY = 'hf_{'a1B2' * 8}'\n")
    reward, notes = code_copy.keep(python, folder)
    assert "late.py" not in " ".join(names(folder.code)) and len(notes) == 1
    assert f"{mine}/late.py seems to hold a secret" in notes[0]
    assert score_safely(reward.within(folder.path), [WORDS]).total == [6.0]  # it is read where it is
    monkeypatch.setattr(code_copy, "MOST_BYTES", 10)
    assert code_copy.keep(python, folder)[0] == python
