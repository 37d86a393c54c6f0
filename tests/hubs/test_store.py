"""Models come from a hub into the store: only what a model needs, and only what may be loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import hf_hub_download

from launcher.core.problems import Problems
from launcher.models import store

CONFIG = json.dumps({"model_type": "qwen3"}).encode()
BOTH = ["huggingface", "modelscope"]
INDEX = "model.safetensors.index.json"


def index(*names: str) -> bytes:
    return json.dumps({"weight_map": {name: name for name in names}}).encode()


@pytest.fixture
def download(hub: Any) -> Callable[..., Path]:
    def call(repo: str = "o/m", **more: Any) -> Path:
        return store.download(repo, lambda progress: None, **{"sources": BOTH, **more})

    return call


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*")
                  if path.is_file() and ".rlrun" not in path.parts)  # fmt: skip


def test_only_what_a_model_needs(hub: Any, download: Any, noise: Any, tmp_path: Path) -> None:
    taken = {"config.json": CONFIG, "model-1.safetensors": noise(9), "model-2.safetensors": noise(9, 1),
             INDEX: index("model-1.safetensors", "model-2.safetensors"), "tokenizer.json": b"{}", "vocab.json": b"{}",
             "merges.txt": b"x", "tokenizer.model": b"x", "chat_template.jinja": b"x", "LICENSE": b"x",
             "README.md": b"x", "generation_config.json": b"{}", "tokenizer_config.json": b"{}"}  # fmt: skip
    left = dict.fromkeys(
        ["modeling_x.py", "tokenization_x.py", "tokenizer.py", "pytorch_model.bin", "consolidated.safetensors",
         "original/model.safetensors", "onnx/model.onnx", "training_args.bin", "optimizer.pt", "LICENSE.py",
         ".gitattributes", "../up.json", "vocab.pkl"], b"y"
    )  # fmt: skip
    hub.add("o/m", {**taken, **left})
    folder = download()
    assert folder == tmp_path / "store" / "o" / "m" and names(folder) == sorted(taken)
    assert store.find("o/m") == folder
    assert store.find("o/m", "v1") is None and store.find("o/other") is None
    hub.add("o/one", {**taken, "model.safetensors": b"w"})  # one file goes before shards, as the loader does
    assert names(download("o/one")) == sorted(
        name for name in [*taken, "model.safetensors"] if "model-" not in name and name != INDEX
    )


def test_a_revision_has_a_folder_of_its_own(hub: Any, download: Any, tmp_path: Path) -> None:
    hub.add("o/m", {"config.json": CONFIG, "model.safetensors": b"w"})
    main, commit = download(), download(revision="c" * 40)
    assert commit == tmp_path / "store" / "o" / ("m@" + "c" * 40) != main
    assert store.find("o/m", "c" * 40) == commit
    assert store.folder_of("o/m", "refs/pr/1").name == "m@refs@pr@1"


REFUSED = [
    # a repository, why it is no model to take
    ({"pytorch_model.bin": b"p"}, "holds weights as pickle only ('pytorch_model.bin'), which can run code"),
    ({"README.md": b"x"}, "holds no weights that are read here, but weights-1.safetensors.x; use model"),
    ({INDEX: index("../evil.safetensors")}, f"{INDEX}: '../evil.safetensors': leads out of its folder"),
    ({INDEX: index("gone.safetensors")}, f"{INDEX}: 'gone.safetensors': is named by the index and is not there"),
    ({"model.safetensors": b"w", "config.json": b'{"auto_map": {"AutoModel": "modeling_x.X"}}'},
     "needs Python code that comes with it ('modeling_x.X'), which is never downloaded"),
]  # fmt: skip


@pytest.mark.parametrize(("files", "output"), REFUSED, ids=[row[1][:50] for row in REFUSED])
def test_what_is_no_model_is_refused(files: dict[str, bytes], output: str, hub: Any, download: Any) -> None:
    hub.add("o/m", {"config.json": CONFIG, "weights-1.safetensors.x": b"", **files})
    with pytest.raises(Problems) as caught:
        download(sources=["huggingface"])
    (line,) = caught.value.lines
    assert line.startswith("o/m on huggingface: ") and output in line
    assert store.find("o/m") is None


def test_what_any_tool_downloaded_counts(hub: Any, tmp_path: Path) -> None:
    """The Hugging Face client's cache, whose files are links to where it keeps their bytes."""
    files = {"config.json": CONFIG, "model.safetensors": b"w"}
    hub.add("o/m", files)
    where, _ = (Path(hf_hub_download("o/m", name, cache_dir=tmp_path / "cache")).parent for name in files)
    assert store.find("o/m") == store.find("o/m", "c" * 40) == where
    assert store.find("o/m", "d" * 40) is None
    (where / "model.safetensors").unlink()
    assert store.find("o/m") is None  # it is not whole


@pytest.mark.parametrize("place", ["m", "o/m"])
def test_a_model_that_somebody_put_into_the_store_counts(place: str, hub: Any, tmp_path: Path) -> None:
    """As /models/NAME of a machine that people share."""
    folder = tmp_path / "store" / place
    folder.mkdir(parents=True)
    (folder / "config.json").write_bytes(CONFIG)
    assert store.find("o/m") is None  # it has no weights
    (folder / "model.safetensors").write_bytes(b"w")
    assert store.find("o/m") == folder
    assert store.find("o/m", "v1") is None  # of a revision that is not known
    (folder / ".rlrun").mkdir()  # a download that has not come to its end
    assert store.find("o/m") is None
