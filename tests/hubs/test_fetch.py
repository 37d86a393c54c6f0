"""Files of a repository come into a folder, whole, once, and only there."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from local_hub import Act

from launcher.core.problems import Problem, Problems
from launcher.hubs import manifest
from launcher.hubs.fetch import fetch, list_files

NAME = "model.safetensors"


@pytest.fixture
def files(noise: Callable[..., bytes], hub: Any) -> dict[str, bytes]:
    made = {NAME: noise(3_000_000), "config.json": b"{}", "empty.txt": b"", "deep/er/part.safetensors": noise(100_000)}
    hub.add("o/m", made)
    hub.add("o/m", made, kind="dataset")
    return made


@pytest.mark.parametrize(("source", "kind"), [("huggingface", "model"), ("modelscope", "dataset")])
def test_all_of_it_once(source: str, kind: str, hub: Any, download: Any, files: Any) -> None:
    download(source=source, kind=kind)
    assert download.holds(files)
    assert hub.total == sum(map(len, files.values()))
    last = download.last
    assert (last.done_files, last.done_bytes) == (last.total_files, last.total_bytes) == (4, hub.total)
    made = manifest.complete(download.folder)
    assert made and (made.source, made.kind, made.repo) == (source, kind, "o/m")
    assert (made.commit == "c" * 40) == (source == "huggingface") and made.commit != "master"
    assert sorted(path.name for path in (download.folder / ".rlrun").iterdir()) == ["lock", "manifest.json"]
    download(source=source, kind=kind)
    assert hub.total == sum(map(len, files.values()))  # nothing was fetched again


def test_a_new_commit_takes_the_old_ones_place(hub: Any, download: Any, files: Any, noise: Any) -> None:
    """A loader prefers one file to many shards: the old one must not stay beside the new ones."""
    download()
    new = {"config.json": b"{ }", "model-00001-of-00001.safetensors": noise(10)}
    hub.add("o/m", new, commit="d" * 40)
    download()
    assert download.holds(new)


def test_what_no_download_brought_is_never_replaced(hub: Any, download: Any, files: Any) -> None:
    """Beside files that an earlier download did bring, and that make way for new ones."""
    download.folder.mkdir()
    (download.folder / "config.json").write_bytes(b"mine")
    (download.folder / "empty.txt").write_bytes(b"")  # the same as the hub's: taken as it is
    for _ in range(2):  # the second call knows no better
        with pytest.raises(Problems, match=r"config.json: is there already and is another file"):
            download()
        assert (download.folder / "config.json").read_bytes() == b"mine"
    (download.folder / "config.json").unlink()
    download()
    assert download.holds(files)
    assert hub.sent[NAME] == len(files[NAME])  # what the refused calls fetched was not fetched again
    (download.folder / "mine.json").write_bytes(b"mine")
    hub.add("o/m", {"config.json": b"{ }", "mine.json": b"theirs"}, commit="d" * 40)
    with pytest.raises(Problems, match=r"mine.json: is there already and is another file"):
        download()
    assert (download.folder / "mine.json").read_bytes() == b"mine"
    assert (download.folder / "config.json").read_bytes() == b"{ }"


def test_a_file_that_was_lost_or_cut_later_is_fetched_again(hub: Any, download: Any, files: Any) -> None:
    download()
    (download.folder / NAME).unlink()
    (download.folder / "config.json").write_bytes(b"")
    assert manifest.complete(download.folder) is None
    (download.folder / "config.json").unlink()
    download()
    assert download.holds(files)


@pytest.mark.parametrize("where", ["deep", ".rlrun", ".rlrun/partial"])
def test_a_link_that_leads_outside_is_refused(where: str, download: Any, files: Any, tmp_path: Path) -> None:
    (download.folder / where).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "outside").mkdir()
    (download.folder / where).symlink_to(tmp_path / "outside")
    with pytest.raises(Problems, match="link"):
        download()
    assert list((tmp_path / "outside").iterdir()) == []


def test_two_at_once_fetch_it_once(hub: Any, download: Any, files: Any) -> None:
    hub.bytes_per_s = 4e6
    notes: list[str] = []
    found = list_files("model", "o/m", sources=["huggingface"])

    def second() -> None:
        fetch(found, found.files, download.folder, lambda progress: notes.extend(progress.notes))

    threads = [threading.Thread(target=second) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert download.holds(files)
    assert hub.total == sum(map(len, files.values()))
    assert any(f"waiting for process {os.getpid()}, which is downloading to it" in note for note in notes)


def test_ctrl_c_keeps_what_is_complete(hub: Any, download: Any, files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file is complete, one comes slowly and one not at all: only the first is not downloaded again."""
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 60)
    hub.bytes_per_s = 1e6
    hub.misbehave("deep/er/part.safetensors", Act("stall", 50_000))

    pressed: list[float] = []

    def ctrl_c(progress: Any) -> None:
        if (download.folder / "config.json").exists() and hub.sent[NAME] > 500_000:
            pressed.append(time.monotonic())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(watch=ctrl_c)
    assert time.monotonic() - pressed[0] < 30  # not the 60 s that a silent server is waited for
    assert not (download.folder / NAME).exists() and manifest.read(download.folder) is None
    hub.bytes_per_s = None
    hub.resume.set()  # the thread that waits in vain holds the client's lock of its file
    download()
    assert download.holds(files)
    assert hub.sent["config.json"] == len(files["config.json"])


@pytest.mark.parametrize(("source", "xet"), [("huggingface", False), ("huggingface", True), ("modelscope", False)])
def test_a_token_never_travels_to_another_host(
    source: str, xet: bool, hub: Any, download: Any, files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor to Xet's storage, from which large files come where the hub offers it."""
    hub.add("o/m", files, xet=xet)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", "ms_secret")
    download(source=source)
    assert download.holds(files) and download.last.done_bytes == download.last.total_bytes
    at_hub = [asked for asked in hub.asked if asked.port == hub.hub.server_port and NAME in asked.path]
    at_cdn = [asked for asked in hub.asked if asked.port == hub.cdn.server_port]
    assert at_hub and all("secret" in asked.headers["Authorization"] for asked in at_hub)
    assert at_cdn and not any("secret" in str(asked.headers) or "Cookie" in asked.headers for asked in at_cdn)
    assert not xet or {asked.path.split("/")[1] for asked in at_cdn} == {"v1", "v2", "xorbs"}


def refused(repo: str, sources: list[str], revision: str | None = None) -> list[Problem]:
    with pytest.raises(Problems) as caught:
        list_files("model", repo, sources=sources, revision=revision)  # type: ignore[arg-type]
    return caught.value.problems


def test_what_a_hub_refuses_is_named(hub: Any, files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.token = "hf_right"
    hub.add("o/gated", files, gated=True)
    (gated,) = refused("o/gated", ["huggingface"])
    assert (gated.where, gated.code) == ("o/gated", "not-permitted")
    assert f"accept its licence at {hub.endpoint}/o/gated and set HF_TOKEN" in gated.fix
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert list_files("model", "o/gated", sources=["huggingface"]).files
    both = refused("o/none", ["huggingface", "modelscope"])
    assert [problem.code for problem in both] == ["not-found", "not-found"]
    assert "not on huggingface" in both[0].got and "not on modelscope" in both[1].got
    (revision,) = refused("o/m", ["huggingface"], "v9")
    assert revision.code == "not-found" and "no such revision" in revision.got


def test_auto_takes_the_first_that_has_it(hub: Any, files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that lost its network is passed over."""
    assert list_files("model", "o/m", sources=["modelscope", "huggingface"]).source == "modelscope"
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert list_files("model", "o/m", sources=["huggingface", "modelscope"]).source == "modelscope"
    (unreachable,) = refused("o/m", ["huggingface"])
    assert unreachable.code == "not-reachable" and "http://127.0.0.1:9" in unreachable.got


def test_a_manifest_that_was_tampered_with_is_none(download: Any, files: Any) -> None:
    download()
    path = download.folder / ".rlrun" / "manifest.json"
    node = json.loads(path.read_text())
    for change in ({"files": {"../x": {"bytes": 1, "sha256": "0"}}}, {"files": []}, {"more": 1}, {"files": {"a": {}}}):
        path.write_text(json.dumps(node | change))
        assert manifest.read(download.folder) is None
    path.write_text("[")
    assert manifest.read(download.folder) is None
