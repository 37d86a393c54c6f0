"""What lock.json says: enough to tell whether a run can be the same again, little to take, and no secrets."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from launcher.config.resolve import resolve
from launcher.core import checkpoints
from launcher.launch import provenance
from launcher.models.pretrained import Pretrained
from launcher.spec.stored import to_yaml

RUN = resolve(["algorithm=grpo", "model=tiny", "data=reverse", "data.n_prompts=64", "data.n_val=8", "sampler.n=4"])


def test_it_says_what_decides_a_result_and_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "https_proxy"):
        monkeypatch.setenv(name, f"canary-{name}")
    taken = json.loads(json.dumps(provenance.collect(RUN, to_yaml(RUN))))
    assert "canary" not in json.dumps(taken)
    assert set(taken) == {"spec", "code", "python", "system", "installed", "data", "model", "reward", "seed"}
    assert f"pydantic=={version('pydantic')}" in taken["installed"]
    assert taken["installed"] == sorted(taken["installed"])
    assert (taken["data"], taken["model"], taken["reward"]) == (RUN.data.fingerprint(), None, None)


def test_what_ray_brings_along_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is loaded already would else be a difference between two equal runs."""
    before = provenance.installed()
    for place in ("thirdparty_files", "mine"):
        (tmp_path / place / f"{place}-1.0.dist-info").mkdir(parents=True)
        (tmp_path / place / f"{place}-1.0.dist-info" / "METADATA").write_text(f"Name: {place}\nVersion: 1.0\n")
        monkeypatch.syspath_prepend(tmp_path / place)
    assert set(provenance.installed()) - set(before) == {"mine==1.0"}


# ---- which bytes a model is


def model(folder: Path, **files: bytes) -> Path:
    folder.mkdir(parents=True)
    for name, content in {"config.json": b"{}", "model.safetensors": b"x" * 100, **files}.items():
        (folder / name).write_bytes(content)
    return folder


def files_of(folder: Path) -> str:
    found = provenance.model_origin(Pretrained(path=str(folder)))
    assert found
    return found["files"]


def test_a_folder_is_told_by_its_content_and_a_large_file_by_pieces(tmp_path: Path) -> None:
    one, other = model(tmp_path / "a"), model(tmp_path / "b", **{"README.md": b"words", ".hidden": b""})
    assert files_of(one) == files_of(other)  # neither where it lies nor what no loader reads counts
    large = bytes(provenance.WHOLE_BYTES + 12_345)
    for before in (b"x" * 100, large):
        (one / "model.safetensors").write_bytes(before)
        (other / "model.safetensors").write_bytes(before[:-1] + b"y")
        assert files_of(one) != files_of(other)
    found = provenance.folder_origin(one)
    assert found and "8 pieces of 1 MiB" in found["hashed"], "what was not read is told"


def test_a_checkpoint_is_told_by_its_manifest(tmp_path: Path) -> None:
    def filled(weight: bytes, state: bytes) -> Callable[[Path], None]:
        def fill(draft: Path) -> None:
            model(draft / "policy", **{"model.safetensors": weight})
            (draft / "trainer.json").write_bytes(state)

        return fill

    made = [checkpoints.write(tmp_path / f"{number}/checkpoints", 1, filled(*of)) / "policy"
            for number, of in enumerate([(b"w", b"1"), (b"w", b"2"), (b"v", b"1")])]  # fmt: skip
    first, same, other = map(files_of, made)
    assert first == same != other  # when it was saved does not count, its weights do
    told = provenance.folder_origin(made[0])
    assert told and told["checkpoint"].endswith("0/checkpoints/step_000001")


def test_when_two_origins_are_the_same() -> None:
    one, other, same = {"files": "a"}, {"files": "b"}, provenance.same_files
    assert same(None, one), "transformers downloaded it"
    assert same({**one, "folder": "/x"}, {**one, "folder": "/y"})
    assert not same(one, None) and not same([one], [one, other])


# ---- which source


@pytest.fixture
def repository(tmp_path: Path) -> Callable[..., str]:
    def git(*words: str) -> str:
        who = ["-c", "user.name=n", "-c", "user.email=e@x"]
        ran = subprocess.run(["git", *who, *words], cwd=tmp_path, capture_output=True, text=True, check=True)
        return ran.stdout.strip()

    git("init", "-q")
    (tmp_path / "a.py").write_text("1\n")
    git("add", ".")
    git("commit", "-qm", "first")
    return git


def test_changes_to_known_files_count(repository: Callable[..., str], tmp_path: Path) -> None:
    commit = repository("rev-parse", "HEAD")
    (tmp_path / "new.txt").write_text("x")
    assert provenance.folder_source(tmp_path) == {"commit": commit}
    diffs = set()
    for name, text in [("a.py", "2\n"), ("a.py", "3\n"), ("b.py", "new\n")]:
        (tmp_path / name).write_text(text)
        repository("add", name)  # staged is changed, too
        found = provenance.folder_source(tmp_path)
        assert found and found["commit"] == commit
        diffs.add(found["diff"])
    assert len(diffs) == 3, "no two uncommitted states are alike"


def test_no_program_that_the_repository_names_is_run_and_where_git_fails_its_answer_is_unknown(
    repository: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("core.fsmonitor", "diff.external", "diff.x.textconv", "diff.x.command"):
        repository("config", name, "touch ran; true")
    (tmp_path / ".gitattributes").write_text("*.py diff=x\n")
    (tmp_path / "a.py").write_text("2\n")
    assert (provenance.folder_source(tmp_path) or {})["diff"]
    assert not (tmp_path / "ran").exists()
    git = provenance._git
    monkeypatch.setattr(provenance, "_git", lambda top, *words: None if words[0] == "diff" else git(top, *words))
    assert provenance.folder_source(tmp_path) == {"commit": repository("rev-parse", "HEAD"), "diff": "unknown"}
    repository("update-ref", "-d", "HEAD")
    assert provenance.folder_source(tmp_path) == {"commit": "unknown"}
