"""Whatever a server does, no wrong byte gets a file's name, and what lasts is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from local_hub import Act

from launcher.core.problems import Problems
from launcher.hubs import fetch

NAME, SIZE = "model.safetensors", 2_000_000
CUT = ("cut", 1_500_000)


@pytest.fixture
def files(noise: Callable[..., bytes], hub: Any) -> dict[str, bytes]:
    made = {NAME: noise(SIZE), "config.json": b'{"a": 1}'}
    hub.add("o/m", made)
    return made


PASSING = [
    # on ModelScope its client's own retries are tested, once for each way to go on
    ("huggingface", [CUT]),
    ("huggingface", [("stall", 1_000_000)]),
    ("huggingface", [CUT, ("429",)]),
    ("huggingface", [CUT, ("no-range",)]),  # the whole file where its end was asked for
    ("huggingface", [("size",)]),  # one byte less than listed
    ("huggingface", [("more",)]),  # more bytes than listed
    ("modelscope", [CUT, ("500",)]),
    ("modelscope", [CUT, ("shift",)]),  # another part than was asked for
    ("modelscope", [CUT, ("garble",)]),
]


@pytest.mark.parametrize(("source", "acts"), PASSING, ids=str)
def test_a_fault_that_passes(acts: list[Any], source: str, hub: Any, download: Any, files: Any) -> None:
    hub.misbehave(NAME, *(Act(*of) for of in acts))
    download(source=source)
    assert download.holds(files)


TO_A_FILE = Act("redirect", to="file:///etc/passwd")


@pytest.mark.parametrize(("source", "act"), [
    ("huggingface", Act("garble")), ("modelscope", Act("cut")), ("modelscope", Act("size")),
    ("huggingface", TO_A_FILE), ("modelscope", TO_A_FILE),
])  # fmt: skip
def test_a_fault_that_lasts(
    act: Act, source: str, hub: Any, download: Any, files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "ATTEMPTS", 1)
    hub.misbehave(NAME, *[act] * 20)
    with pytest.raises(Problems) as caught:
        download(source=source)
    (problem,) = caught.value.problems
    assert (problem.where, problem.code) == (NAME, "not-reachable")
    assert not (download.folder / NAME).exists()
    assert (download.folder / "config.json").read_bytes() == files["config.json"]  # the others are not held up
    assert not (download.folder / ".rlrun" / "manifest.json").exists()
    hub.acts.clear()
    download(source=source)
    assert download.holds(files)
    assert hub.sent["config.json"] == len(files["config.json"])


def test_what_changed_on_the_hub_is_not_continued(hub: Any, download: Any, files: Any, noise: Any) -> None:
    """The beginning of the old file must not become that of the new one, though both have one name and size."""
    hub.misbehave(NAME, Act("cut", 1_000_000), *[Act("500")] * 20)
    with pytest.raises(Problems):
        download(source="modelscope")
    hub.acts.clear()
    new = {**files, NAME: noise(SIZE, seed=1)}
    hub.add("o/m", new, commit="d" * 40)
    download(source="modelscope")
    assert download.holds(new)
    assert not any("are not those" in note for note in download.notes)


@pytest.mark.parametrize("xet", [False, True])
def test_a_hub_that_serves_what_it_does_not_list(xet: bool, hub: Any, download: Any, noise: Any) -> None:
    """The listing describes the old bytes, the server has new ones of that size: they are never given the name."""
    old = {NAME: noise(SIZE, seed=1), "config.json": b"{}?"}
    hub.add("o/m", {NAME: noise(SIZE), "config.json": b"{}!"}, listed=old, xet=xet)
    with pytest.raises(Problems) as caught:
        download()
    assert sorted(problem.where for problem in caught.value.problems) == ["config.json", NAME]
    assert {problem.code for problem in caught.value.problems} == {"not-reachable"}
    assert [path.name for path in download.folder.iterdir()] == [".rlrun"] and download.staged() == []


def test_a_disk_without_room(hub: Any, download: Any, files: Any, small_disk: Any, tmp_path: Path) -> None:
    download.folder = small_disk(1024, tmp_path / "disk") / "to"
    with pytest.raises(Problems) as caught:
        download()
    (problem,) = caught.value.problems
    assert problem.code == "not-enough" and f"{tmp_path / 'disk'} has" in problem.got
    assert hub.sent[NAME] == 0
