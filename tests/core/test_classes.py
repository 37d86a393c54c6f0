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


REWARD = "from launcher.spec.reward import Reward\n"
MINE = "class Mine(Reward): pass\n"
THEIRS = {"planted_other": f"{REWARD}class Theirs(Reward): pass\n"}
OWN: dict[str, dict[str, str]] = {
    "by its name": {"planted": REWARD + MINE},
    "by its module": {"planted": "import launcher.spec.reward as r\nclass Mine(r.Reward): pass\n"},
    "by a whole path": {"planted": "import launcher.spec.reward\nclass Mine(launcher.spec.reward.Reward): pass\n"},
    "by another": {"planted": "from launcher.rewards.exact import Exact\nclass B(Exact): pass\nclass Mine(B): pass\n"},
    "extending what is brought in": {
        **THEIRS, "planted": "import launcher, planted_other\nclass Mine(planted_other.Theirs): pass\n",
    },
    "in a package, by dots": {
        "planted/__init__": "", "planted/base": f"{REWARD}class Base(Reward): pass\n",
        "planted/mine": "import launcher\nfrom .base import Base\nclass Mine(Base): pass\n",
    },
}  # fmt: skip
NOT_RUN: dict[str, dict[str, str]] = {
    "of no kind": {"planted": f"{REWARD}class Mine: pass\n"},
    "not for this project": {"planted": "from enum import Enum\nclass Mine(Enum): pass\n"},
    "of an own launcher": {"planted": f"from .launcher import Reward\n{MINE}"},
    "a function": {"planted": "def Mine(): pass\n"},
    "made by a call": {"planted": f"{REWARD}Mine = type('Mine', (Reward,), {{}})\n"},
    "no Python": {"planted": "class Mine(\n"},
    "too long": {"planted": "#" * 2**20 + "\n" + REWARD + MINE},
    "too deep": {"planted": "x = " + "(" * 5000 + "\n"},
    "in a package, which is not run either": {"planted/__init__": "", "planted/mine": "class Mine: pass\n"},
}


def write(folder: Path, sources: dict[str, str]) -> str:
    """The path of the class `Mine` of the last of these modules."""
    for name, text in sources.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text(RAN + text)
    return f"{[*sources][-1].replace('/', '.')}.Mine"


@pytest.mark.parametrize("sources", OWN.values(), ids=OWN)
def test_a_class_of_ones_own_is_found(sources: dict[str, str], modules: Path) -> None:
    assert issubclass(locate(write(modules, sources), Reward), Reward)


@pytest.mark.parametrize("sources", NOT_RUN.values(), ids=NOT_RUN)
def test_what_does_not_fit_is_never_run(sources: dict[str, str], modules: Path) -> None:
    path = write(modules, sources)
    with pytest.raises(ValueError, match=r"use |expected"):
        locate(path, Reward)
    assert not [*modules.rglob("*.ran")] and "planted" not in sys.modules


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
    path = write(modules, {"planted": f"{REWARD}x = 1 / 0\n{MINE}"})
    with pytest.raises(ValueError, match=r"import 'planted.Mine': ZeroDivisionError \(planted.py:3: x = 1 / 0\)"):
        locate(path, Reward)
