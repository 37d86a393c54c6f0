"""A config names a class; what it may not name is refused without being run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.core.classes import locate
from launcher.spec.algorithm import Algorithm
from launcher.spec.reward import Reward

RAN = "import pathlib; pathlib.Path(__file__).with_suffix('.ran').touch()\n"


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of modules, each of which leaves a mark when it runs."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("planted")]:
        del sys.modules[name]


def module(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(RAN + text)
    return path


OWN = {
    "by its name": "from launcher.spec.reward import Reward\nclass Mine(Reward): pass\n",
    "by its module": "import launcher.spec.reward as r\nclass Mine(r.Reward): pass\n",
    "by a whole path": "import launcher.spec.reward\nclass Mine(launcher.spec.reward.Reward): pass\n",
    "by another": "from launcher.rewards.exact import Exact\nclass Between(Exact): pass\nclass Mine(Between): pass\n",
    "extending what is brought in": "import launcher, planted_other\nclass Mine(planted_other.Theirs): pass\n",
}


@pytest.mark.parametrize("text", OWN.values(), ids=OWN)
def test_a_class_of_ones_own_is_found(text: str, modules: Path) -> None:
    module(modules, "planted_other", "from launcher.spec.reward import Reward\nclass Theirs(Reward): pass\n")
    module(modules, "planted", text)
    assert issubclass(locate("planted.Mine", Reward), Reward)


def test_a_class_in_a_package_is_found_by_dots(modules: Path) -> None:
    module(modules, "planted/__init__", "")
    module(modules, "planted/base", "from launcher.spec.reward import Reward\nclass Base(Reward): pass\n")
    module(modules, "planted/mine", "import launcher\nfrom .base import Base\nclass Mine(Base): pass\n")
    assert issubclass(locate("planted.mine.Mine", Reward), Reward)


NOT_RUN = {
    "of no kind": "class Mine: pass\n",
    "not for this project": "from enum import Enum\nclass Mine(Enum): pass\n",
    "of an own launcher": "from .launcher import Reward\nclass Mine(Reward): pass\n",
    "a function": "def Mine(): pass\n",
    "made by a call": "from launcher.spec.reward import Reward\nMine = type('Mine', (Reward,), {})\n",
    "no Python": "class Mine(\n",
    "too long": "#" * 2**20 + "\nfrom launcher.spec.reward import Reward\nclass Mine(Reward): pass\n",
    "too deep": "x = " + "(" * 5000 + "\n",
}


@pytest.mark.parametrize("text", NOT_RUN.values(), ids=NOT_RUN)
def test_what_does_not_fit_is_never_run(text: str, modules: Path) -> None:
    path = module(modules, "planted", text)
    with pytest.raises(ValueError, match=r"use |expected"):
        locate("planted.Mine", Reward)
    assert not path.with_suffix(".ran").exists() and "planted" not in sys.modules


def test_no_package_on_the_way_is_run(modules: Path) -> None:
    module(modules, "planted/__init__", "")
    module(modules, "planted/mine", "class Mine: pass\n")
    with pytest.raises(ValueError):
        locate("planted.mine.Mine", Reward)
    assert not list(modules.rglob("*.ran"))


@pytest.mark.parametrize(
    "path",
    [
        "os.system", "subprocess.Popen", "builtins.getattr", "builtins.open", "antigravity.x", "launcher.__main__.app",
        "a b.c", "..os.system", "os.", "os", "", "os.system()", "_posixsubprocess.x", "encodings.idna.Codec",
    ],
)  # fmt: skip
def test_nothing_foreign_is_named(path: str) -> None:
    loaded = set(sys.modules)
    with pytest.raises(ValueError):
        locate(path, Algorithm)
    assert not {"torch", "antigravity"} & (set(sys.modules) - loaded)


def test_an_error_of_the_module_has_its_line(modules: Path) -> None:
    module(modules, "planted", "from launcher.spec.reward import Reward\nx = 1 / 0\nclass Mine(Reward): pass\n")
    with pytest.raises(ValueError, match=r"import 'planted.Mine': ZeroDivisionError \(planted.py:3: x = 1 / 0\)"):
        locate("planted.Mine", Reward)
