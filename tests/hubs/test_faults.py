"""Whatever a server does, no wrong byte gets a file's name, what was fetched stays, and the fault is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.hubs.repo import NetworkFaults
from launcher.problems import Problems

NAME, SIZE = "model.safetensors", 2_000_000
CUT = ("cut", 1_500_000)


@pytest.fixture
def files(noise: Callable[..., bytes], hub: Any) -> dict[str, bytes]:
    made = {NAME: noise(SIZE), "config.json": b'{"a": 1}'}
    hub.add("o/m", made)
    return made


MENDED = [
    # what the server does, what is said of it, bytes that have to come again
    ([CUT], "cut the connection; goes on from byte 1500000", 0),
    ([CUT, ("cut", 100), ("cut", 100_000)], "goes on from byte 1600100", 0),  # each goes on where the last one was
    ([("stall", 1_000_000)], "sends nothing any more; goes on from byte 1000000", 0),
    ([("drip",)], "has stalled", 0),  # it sends, but a file of any size would take for ever
    ([CUT, ("403",)], "refuses the link that the hub made (403); goes on from byte 1500000", 0),  # it had run out
    ([("500",)], "answers 500; goes on from byte 0", 0),
    ([CUT, ("429",)], "answers 429; goes on from byte 1500000", 0),
    ([CUT, ("416",)], "knows no such byte (416); goes on from byte 1500000", 0),
    ([CUT, ("416",), ("416",)], "knows no such byte (416); goes on from byte 0", 1_500_000),  # it insists
    ([CUT, ("no-range",)], "does not go on from byte 1500000; fetched anew", 1_500_000),
    ([CUT, ("shift",)], "sends other bytes than were asked for", SIZE - CUT[1]),  # sent, and not taken
    ([("size",)], f"has {SIZE - 1} bytes where the hub lists {SIZE}", SIZE),
    ([("more",)], "sends more than", SIZE + 4),
    ([("gzip",)], "sends it as 'gzip' though it was asked for plain bytes", SIZE),
    ([("garble",)], "its bytes are not those the hub lists", SIZE),  # same size, wrong content
    ([CUT, ("garble",)], "its bytes are not those the hub lists", SIZE),
]  # fmt: skip


@pytest.mark.parametrize("source", ["huggingface", "modelscope"])
@pytest.mark.parametrize(("acts", "said", "again"), MENDED, ids=[f"{row[0]}" for row in MENDED])
def test_a_fault_is_named_and_mended(
    acts: list[Any], said: str, again: int, source: str, hub: Any, act: Any, download: Any, files: Any, holds: Any
) -> None:
    hub.misbehave(NAME, *(act(*of) for of in acts))
    download(source=source)
    assert holds(download.folder, files)
    assert any(said in note and note.startswith(NAME) for note in download.notes), download.notes
    assert hub.sent[NAME] <= SIZE + again + 200_000  # what the system holds when a connection ends
    if not again:
        assert hub.sent[NAME] - SIZE <= 0.1 * SIZE


LASTING = [
    ("cut", "cut the connection"), ("stall", "sends nothing any more"), ("403", "refuses the link"),
    ("500", "answers 500"), ("garble", "its bytes are not those the hub lists"), ("gzip", "plain bytes"),
    ("size", "bytes where the hub lists"), ("more", "sends more than"), ("etag", "names another content"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "said"), LASTING, ids=[row[0] for row in LASTING])
def test_a_fault_that_lasts_is_given_up_and_taken_up_again(
    what: str, said: str, hub: Any, act: Any, download: Any, files: Any, holds: Any
) -> None:
    hub.misbehave(NAME, *[act(what)] * 8)
    with pytest.raises(NetworkFaults) as caught:
        download()
    (line,) = caught.value.lines
    assert line.startswith(NAME) and said in line
    assert not (download.folder / NAME).exists()
    assert (download.folder / "config.json").read_bytes() == files["config.json"]  # the others are not held up
    assert not (download.folder / ".rlrun" / "manifest.json").exists()
    hub.acts.clear()
    download()
    assert holds(download.folder, files)


def test_getting_on_slowly_is_no_failure(hub: Any, act: Any, download: Any, files: Any, holds: Any) -> None:
    """More cuts than tries are allowed, but each brought more than next to nothing."""
    hub.misbehave(NAME, *[act("cut", 200_000)] * 9)
    download()
    assert holds(download.folder, files) and hub.sent[NAME] <= 1.1 * SIZE


REFUSED = [
    ("file:///etc/passwd", "sends us to 'file', which is neither http nor https"),
    ("gopher://127.0.0.1/x", "sends us to 'gopher', which is neither http nor https"),
    ("data:text/plain,x", "sends us to 'data', which is neither http nor https"),
]


@pytest.mark.parametrize(("to", "said"), REFUSED)
def test_a_redirect_that_leads_astray_is_refused(
    to: str, said: str, hub: Any, act: Any, download: Any, files: Any
) -> None:
    hub.misbehave(NAME, act("redirect", to=to))
    with pytest.raises(Problems) as caught:
        download()
    assert said in caught.value.lines[0] and not isinstance(caught.value, NetworkFaults)
    assert not (download.folder / NAME).exists()


def test_starting_anew_ends(hub: Any, act: Any, download: Any, files: Any) -> None:
    """Each try brings much, and each time the server then denies that it ever sent it."""
    hub.misbehave(NAME, *[step for _ in range(9) for step in (act("cut", 900_000), act("416"), act("416"))])
    with pytest.raises(NetworkFaults, match="began anew 3 times"):
        download()


def test_a_circle_of_redirects_ends(hub: Any, act: Any, download: Any, files: Any) -> None:
    here = f"{hub.endpoint}/o/m/resolve/{'c' * 40}/{NAME}"
    hub.misbehave(NAME, *[act("redirect", to=here)] * 20)
    with pytest.raises(Problems, match="sends us on more than 8 times"):
        download()


def test_what_changed_upstream_is_not_continued(
    hub: Any, act: Any, download: Any, files: Any, noise: Any, holds: Any
) -> None:
    """The beginning of the old file must not become that of the new one, though both have one name and size."""
    hub.misbehave(NAME, *[act("cut", 1_000_000)], *[act("500")] * 8)
    with pytest.raises(NetworkFaults):
        download()
    assert download.partial() == 1_000_000
    hub.acts.clear()
    new = {**files, NAME: noise(SIZE, seed=1)}
    hub.add("o/m", new, commit="d" * 40)
    download()
    assert holds(download.folder, new)
    assert download.notes[-1:] == [] or "are not those" not in download.notes[-1]


def test_a_hub_that_serves_what_it_does_not_list(hub: Any, download: Any, noise: Any) -> None:
    """The listing tells of the old bytes, the server has new ones of that size: named, and never placed."""
    hub.add(
        "o/m", {NAME: noise(SIZE), "config.json": b"{}!"}, listed={NAME: noise(SIZE, seed=1), "config.json": b"{}?"}
    )
    with pytest.raises(NetworkFaults) as caught:
        download()
    assert sorted(line.partition(":")[0] for line in caught.value.lines) == ["config.json", NAME]
    assert all("are not those the hub lists" in line and "twice" in line for line in caught.value.lines)
    assert [path.name for path in download.folder.iterdir()] == [".rlrun"] and download.partial() == 0


def test_a_disk_that_is_full(hub: Any, download: Any, files: Any, small_disk: Any, tmp_path: Path) -> None:
    download.folder = small_disk(1024, tmp_path / "disk") / "to"
    with pytest.raises(Problems) as caught:
        download()
    (line,) = caught.value.lines
    assert f"{tmp_path / 'disk'} has" in line and "bytes are to come" in line
    assert hub.sent[NAME] == 0
