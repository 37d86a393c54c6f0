"""Whatever a listing says, nothing is written outside the folder."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.core.problems import Problems
from launcher.hubs import names
from launcher.hubs.fetch import fetch, list_files
from launcher.hubs.repo import Listing, RemoteFile, check_repo, is_id

HOSTILE = {
    "leads out of its folder": ["../x", "a/../../x", "..", ".", "a/./b", "a/.."],
    "is empty or absolute": ["/etc/passwd", "//host/x", "a//b", "a/", ""],
    "invisible character": ["a\0b", "a\nb", "a\x1b[2Jb", "a\u202egpj.exe", "a\u200bb", "a\ufeffb", "a\ud800b"],
    "a backslash": ["a\\b", "..\\x"],
    "is too long": ["x" * 256, "é" * 128, "/".join(["x" * 200] * 6)],
    "rlrun uses itself": [".rlrun/manifest.json", ".rlrun", ".RLRUN/x"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "path"), [(why, path) for why, paths in HOSTILE.items() for path in paths], ids=ascii
)
def test_a_hostile_name_is_refused_and_named(reason: str, path: str) -> None:
    (problem,) = names.check_names([path])
    assert problem.where.startswith((repr(path), repr(path)[:70])) and reason in problem.got
    assert str(problem).isprintable()


def test_repositories_and_revisions_that_no_hub_has() -> None:
    """A name that could be a path, an address, or another hub's."""
    assert is_id("Qwen/Qwen2.5-0.5B-Instruct") and is_id("o/m_1-2.3") and is_id("o/" + "m" * 96)
    for repo in ("../x", "o/..", "/o/m", "o/m/x", "o", "file:///x", "o/m?x", "o/m%2f", "o\\m", "o/m\n", "ö/m", "-o/m",
                 "o/" + "m" * 97):  # fmt: skip
        assert not is_id(repo)
    check_repo("o/m", "refs/pr/1")
    for revision in ("..", "a/../b", "-x", "a b", "", "a//b", "x" * 201):
        with pytest.raises(Problems, match="revision: got"):
            check_repo("o/m", revision)


PARTS = st.one_of(st.sampled_from(["..", ".", "", "/", "a", "b", "link", "C:", "\\", ".rlrun"]), st.text(max_size=8))


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(paths=st.lists(st.lists(PARTS, min_size=1, max_size=4).map("/".join), min_size=1, max_size=4, unique=True))
def test_nothing_is_written_outside(paths: list[str], tmp_path_factory: Any, hub: Any) -> None:
    """The real client writes every name that is accepted."""
    root = tmp_path_factory.mktemp("root")
    (root / "outside").mkdir()
    (root / "to").mkdir()
    (root / "to" / "link").symlink_to(root / "outside")
    hub.add("o/m", dict.fromkeys(paths, b""))
    with suppress(Problems):
        listed = list_files("model", "o/m", sources=["huggingface"])
        fetch(listed, listed.files, root / "to", lambda progress: None)
    assert sorted(path.name for path in root.iterdir()) == ["outside", "to"]
    assert list((root / "outside").iterdir()) == []


def test_a_file_without_a_hash_is_refused(tmp_path: Path) -> None:
    listed = Listing("modelscope", "dataset", "o/m", "master", "master", (RemoteFile("a", 1, None, None),), "http://x")
    with pytest.raises(Problems, match="a: comes without a hash, so its bytes cannot be verified"):
        fetch(listed, listed.files, tmp_path / "to", lambda progress: None)
