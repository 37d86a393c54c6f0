"""verl's checkpoints: what is complete is taken over, and what is not is named."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from launcher.engines.verl import saved


def shards(folder: Path, world: int = 2, role: str = "actor") -> Path:
    """A checkpoint as verl writes it for so many processes."""
    for kind in ("model", "optim", "extra_state"):
        for rank in range(world):
            path = folder / role / f"{kind}_world_size_{world}_rank_{rank}.pt"
            path.parent.mkdir(parents=True, exist_ok=True)
            with zipfile.ZipFile(path, "w") as file:
                file.writestr("data", bytes(100))
    (folder / role / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": world}))
    with zipfile.ZipFile(folder / "data.pt", "w") as file:
        file.writestr("data", bytes(100))
    return folder


@pytest.mark.parametrize(
    "damage",
    [
        lambda at: (at / "data.pt").unlink(),
        lambda at: (at / "critic" / "optim_world_size_2_rank_1.pt").unlink(),
        lambda at: (at / "actor" / "model_world_size_2_rank_0.pt").write_bytes(b"PK\x03\x04half"),
        lambda at: (at / "actor" / "model_world_size_2_rank_0.pt").rename(
            at / "actor" / "model_world_size_4_rank_0.pt"
        ),
        lambda at: [path.unlink() for path in (at / "actor").glob("*.pt")],
    ],
)
def test_one_that_is_not_whole_is_left(tmp_path: Path, damage: object) -> None:
    source = shards(shards(tmp_path / "verl" / "saved" / "global_step_20"), role="critic")
    assert saved.is_complete(source)
    damage(source)  # type: ignore[operator]
    assert not saved.is_complete(source)
    assert not saved.take_over(tmp_path, 20)
    assert source.is_dir() and not (tmp_path / "checkpoints").exists()


def test_without_rows_has_all_but_the_state_of_the_loader(tmp_path: Path) -> None:
    source = shards(tmp_path / "global_step_4")
    made = saved.without_rows(str(source), tmp_path / "resumed")
    assert made.name == "global_step_4" and not (made / "data.pt").exists()
    assert (made / "actor" / "model_world_size_2_rank_0.pt").is_file() and (source / "data.pt").is_file()
