"""Files of a repository come into a folder, whole, once, and only there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from launcher.core.problems import Problems
from launcher.hubs import manifest
from launcher.hubs.fetch import fetch, listing
from launcher.hubs.repo import NetworkFaults, Patience

NAME = "model.safetensors"


@pytest.fixture
def files(noise: Callable[..., bytes], hub: Any) -> dict[str, bytes]:
    made = {NAME: noise(3_000_000), "config.json": b"{}", "empty.txt": b"", "deep/er/part.safetensors": noise(100_000)}
    hub.add("o/m", made)
    hub.add("o/m", made, kind="dataset")
    return made


@pytest.mark.parametrize("source", ["huggingface", "modelscope"])
@pytest.mark.parametrize("kind", ["model", "dataset"])
def test_all_of_it_once(source: str, kind: str, hub: Any, bring: Any, files: Any, holds: Any) -> None:
    bring(source=source, kind=kind)
    assert holds(bring.folder, files)
    assert hub.total == sum(map(len, files.values()))
    assert {file.state for file in bring.last.files} == {"done"} and bring.last.there == bring.last.size
    made = manifest.complete(bring.folder)
    assert made and (made.source, made.kind, made.repo) == (source, kind, "o/m")
    assert (made.commit == "c" * 40) == (source == "huggingface") and made.commit != "master"
    assert manifest.verify(bring.folder) == []
    assert sorted(path.name for path in (bring.folder / ".rlrun").iterdir()) == ["lock", "manifest.json"]
    bring(source=source, kind=kind)
    assert hub.total == sum(map(len, files.values()))  # nothing was fetched again


def test_others_may_read_it(bring: Any, files: Any) -> None:
    """A shared store: the files follow the umask, and the manifest can be read by all."""
    before = os.umask(0o022)
    try:
        bring()
    finally:
        os.umask(before)
    assert (bring.folder / NAME).stat().st_mode & 0o777 == 0o644
    assert (bring.folder / ".rlrun" / "manifest.json").stat().st_mode & 0o777 == 0o644


def test_a_part_of_it_and_then_the_rest(hub: Any, bring: Any, files: Any, holds: Any) -> None:
    found = listing("model", "o/m", sources=["huggingface"])
    config = [file for file in found.files if file.path == "config.json"]
    bring(wanted=config)
    assert holds(bring.folder, {"config.json": b"{}"})
    bring()
    assert holds(bring.folder, files) and set(manifest.read(bring.folder).files) == set(files)  # type: ignore[union-attr]
    bring(wanted=config)  # the manifest still speaks of all
    assert set(manifest.read(bring.folder).files) == set(files)  # type: ignore[union-attr]


@pytest.mark.parametrize("source", ["huggingface", "modelscope"])
def test_a_new_commit_takes_the_old_ones_place(
    source: str, hub: Any, bring: Any, files: Any, noise: Any, holds: Any
) -> None:
    """A loader prefers one file to many shards: the old one must not stay beside the new ones."""
    bring(source=source)
    new = {"config.json": b"{ }", "model-00001-of-00001.safetensors": noise(10)}
    hub.add("o/m", new, commit="d" * 40)
    bring(source=source)
    assert holds(bring.folder, new)


def test_a_file_that_was_there_before_is_kept(hub: Any, bring: Any, files: Any, holds: Any) -> None:
    bring.folder.mkdir()
    (bring.folder / "config.json").write_bytes(b"mine")
    (bring.folder / "note.txt").write_bytes(b"mine too")
    (bring.folder / "empty.txt").write_bytes(b"")  # the same as the hub's: taken as it is
    for _ in range(2):  # the second call knows no better
        with pytest.raises(Problems, match=r"config.json: is there already and is another file"):
            bring()
        assert (bring.folder / "config.json").read_bytes() == b"mine"
    (bring.folder / "config.json").unlink()
    bring()
    assert holds(bring.folder, {**files, "note.txt": b"mine too"})
    assert hub.sent[NAME] == len(files[NAME])  # what the refused calls fetched was not fetched again


def test_a_file_that_was_damaged_later_is_found_and_mended(hub: Any, bring: Any, files: Any, holds: Any) -> None:
    bring()
    path = bring.folder / NAME
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert manifest.verify(bring.folder) == [
        f"{path}: its bytes changed (sha256 differs); downloading again would do"
    ]  # fmt: skip
    path.unlink()
    assert manifest.complete(bring.folder) is None
    bring()
    assert holds(bring.folder, files)


@pytest.mark.parametrize("where", ["deep", ".rlrun", ".rlrun/partial"])
def test_a_link_that_leads_outside_is_refused(where: str, bring: Any, files: Any, tmp_path: Path) -> None:
    (bring.folder / where).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "outside").mkdir()
    (bring.folder / where).symlink_to(tmp_path / "outside")
    with pytest.raises(Problems, match="link"):
        bring()
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_link_in_a_files_place_is_not_followed(bring: Any, files: Any, tmp_path: Path) -> None:
    bring.folder.mkdir()
    (tmp_path / "precious").write_bytes(b"precious")
    (bring.folder / "config.json").symlink_to(tmp_path / "precious")
    with pytest.raises(Problems, match="is there already"):
        bring()
    assert (tmp_path / "precious").read_bytes() == b"precious"


def test_a_link_in_an_unfinished_files_place_is_not_followed(bring: Any, files: Any, tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"precious")
    found = listing("model", "o/m", sources=["huggingface"])
    place = manifest.partial(bring.folder, next(file for file in found.files if file.path == NAME))
    place.parent.mkdir(parents=True)
    place.symlink_to(tmp_path / "precious")
    with pytest.raises(Problems, match="too many levels of symbolic links"):
        bring()
    assert (tmp_path / "precious").read_bytes() == b"precious"


def test_two_at_once_fetch_it_once(hub: Any, bring: Any, files: Any, holds: Any, quick: Any) -> None:
    hub.bytes_per_s = 4e6
    notes: list[str] = []
    found = listing("model", "o/m", sources=["huggingface"])

    def second() -> None:
        fetch(found, found.files, bring.folder, lambda progress: notes.extend(progress.notes), patience=quick)

    threads = [threading.Thread(target=second) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert holds(bring.folder, files)
    assert hub.total == sum(map(len, files.values()))
    assert any(f"waits for process {os.getpid()}, which is downloading to it" in note for note in notes)


def test_stopping_is_prompt_and_loses_nothing(hub: Any, bring: Any, files: Any, holds: Any, act: Any) -> None:
    """Ctrl-C while one file comes slowly and another not at all."""
    hub.bytes_per_s = 2e6
    hub.misbehave("deep/er/part.safetensors", act("stall", 50_000))

    pressed: list[float] = []

    def ctrl_c(progress: Any) -> None:
        if progress.there > 1_000_000:
            pressed.append(time.monotonic())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bring(watch=ctrl_c, patience=None)
    assert time.monotonic() - pressed[0] < 1  # far less than the patience with a silent server
    kept = bring.partial()
    time.sleep(0.3)
    assert bring.partial() == kept  # no thread goes on writing
    assert kept > 1_000_000
    hub.bytes_per_s = None
    bring()
    assert holds(bring.folder, files)
    assert hub.total <= sum(map(len, files.values())) + 0.1 * kept


@pytest.mark.parametrize("source", ["huggingface", "modelscope"])
def test_a_token_never_travels_to_another_host(
    source: str, hub: Any, bring: Any, files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", "ms_secret")
    bring(source=source)
    at_hub = [asked for asked in hub.of_bytes(NAME) if asked.port == hub.hub.server_port]
    at_cdn = [asked for asked in hub.asked if asked.port == hub.cdn.server_port]
    assert at_hub and all("secret" in asked.headers["Authorization"] for asked in at_hub)
    assert at_cdn and not any("secret" in str(asked.headers) or "Cookie" in asked.headers for asked in at_cdn)


def listed(repo: str, sources: list[str], revision: str | None = None) -> list[str]:
    with pytest.raises(Problems) as caught:
        listing("model", repo, sources=sources, revision=revision)  # type: ignore[arg-type]
    assert not isinstance(caught.value, NetworkFaults)
    return caught.value.lines


def test_what_a_hub_refuses_is_named(hub: Any, files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.token = "hf_right"
    hub.add("o/gated", files, gated=True)
    (gated,) = listed("o/gated", ["huggingface"])
    assert gated == (
        "o/gated: huggingface shows it to those who accepted its licence; accepting it at"
        f" {hub.endpoint}/o/gated and HF_TOKEN (or hf auth login) would do"
    )
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert listing("model", "o/gated", sources=["huggingface"]).files
    both = listed("o/none", ["huggingface", "modelscope"])
    assert [line.split(";")[0] for line in both] == [
        "o/none: huggingface has no such model, or this token may not see it",
        "o/none: modelscope has no such model, or no revision 'master' of it",
    ]
    (revision,) = listed("o/m", ["huggingface"], "v9")
    assert revision == "o/m: huggingface has no revision 'v9' of it; a branch, tag or commit would do"


def test_auto_passes_over_a_gate(hub: Any, files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub lists a gated repository to everyone; that its files are refused must be found before they are asked for,
    while another hub can still be asked."""
    hub.token = "hf_right"
    hub.add("o/gated", files, gated=True)
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", "hf_right")  # there it was accepted
    assert listing("model", "o/gated", sources=["huggingface", "modelscope"]).source == "modelscope"


def test_auto_takes_the_first_that_has_it(hub: Any, files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that lost its network is passed over."""
    assert listing("model", "o/m", sources=["modelscope", "huggingface"]).source == "modelscope"
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    quick = {"patience": Patience(backoff_s=0.01)}
    assert listing("model", "o/m", sources=["huggingface", "modelscope"], **quick).source == "modelscope"
    with pytest.raises(NetworkFaults, match=r"huggingface cannot be reached at http://127.0.0.1:9"):
        listing("model", "o/m", sources=["huggingface"], **quick)


def test_offline_asks_nobody(hub: Any, files: Any) -> None:
    code = "from launcher.hubs.fetch import listing; listing('model', 'o/m', sources=['huggingface', 'modelscope'])"
    ran = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True
    )
    assert "o/m: is not here, and HF_HUB_OFFLINE forbids to fetch it" in ran.stderr
    assert hub.asked == []


def test_a_manifest_that_was_tampered_with_is_none(bring: Any, files: Any) -> None:
    bring()
    path = bring.folder / ".rlrun" / "manifest.json"
    node = json.loads(path.read_text())
    for change in ({"files": {"../x": {"bytes": 1, "sha256": "0"}}}, {"files": []}, {"more": 1}, {"files": {"a": {}}}):
        path.write_text(json.dumps(node | change))
        assert manifest.read(bring.folder) is None
    path.write_text("[")
    assert manifest.read(bring.folder) is None
