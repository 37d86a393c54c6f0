"""A run that goes on elsewhere: on more processes or fewer, weights laid otherwise; and what may not be changed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from launcher.cli.main import app
from launcher.config.amend import amended
from launcher.config.resolve import resolve
from launcher.core.events import Alert, Step, events_of
from launcher.core.problems import Problems
from launcher.launch.start import run_of
from launcher.runs.folder import Folder
from launcher.spec.stored import to_yaml

RUN = yaml.safe_load(to_yaml(resolve(["algorithm=grpo", "model=tiny", "data=reverse", "sampler.n=4"])))


@pytest.mark.parametrize(
    ("word", "path", "value"),
    [
        ("hardware.nproc_per_node=3", ("hardware", "nproc_per_node"), 3),
        ("engine.strategy=fsdp2", ("engine", "strategy"), "fsdp2"),
        ("engine.offload=[weights,critic]", ("engine", "offload"), ["weights", "critic"]),
        ("trainer.save_freq=10", ("trainer", "save_freq"), 10),
    ],
)
def test_where_it_runs_and_how_fast_is_free(word: str, path: tuple[str, str], value: Any) -> None:
    found = amended(RUN, [word])
    assert found[path[0]][path[1]] == value
    found[path[0]][path[1]] = RUN[path[0]][path[1]]
    assert found == RUN  # nothing else, and the run that was given stays as it was


WHAT = "cannot change while a run goes on; leave it out; hardware., engine., cluster., trainer.total_training_steps and"
REFUSED = [
    ("optim.lr=1", f"optim.lr: {WHAT}"),
    ("data.train_batch_size=4", f"data.train_batch_size: {WHAT}"),
    ("trainer.ppo_epochs=2", f"trainer.ppo_epochs: {WHAT}"),
    ("seed=1", f"seed: {WHAT}"),
    ("faster", "'faster': cannot be read; use key=value"),
    ("hardware.nproc=2", "hardware.nproc: no such setting; "),
    ("engine._target_=os.system", "engine._target_: _target_ is named by config files only; "),
    ("trainer.n_gpus_per_node=2", "trainer.n_gpus_per_node: no such setting; use hardware.n_gpus_per_node=2"),
    ("engine.strategy=[", "'engine.strategy=[': cannot be read; use key=value"),
    ("--dryrun", "--dryrun: no such option; did you mean --dry-run?"),
]  # fmt: skip


@pytest.mark.parametrize(("word", "line"), REFUSED, ids=[word for word, _ in REFUSED])
def test_what_it_learns_by_is_not(word: str, line: str) -> None:
    with pytest.raises(Problems) as caught:
        amended(RUN, [word])
    (found,) = caught.value.lines
    assert found.startswith(line)


def test_a_run_of_before_takes_settings_that_are_newer(tmp_path: Path) -> None:
    older = {**RUN, "cluster": {name: value for name, value in RUN["cluster"].items() if name != "stall_grace_s"}}
    folder = Folder(tmp_path)
    folder.spec.write_text(yaml.safe_dump(older))
    assert run_of(folder, ["cluster.stall_grace_s=3"]).cluster.stall_grace_s == 3
    folder.spec.write_text(yaml.safe_dump({**older, "cluster": {**older["cluster"], "usage_s": -1}}))
    assert run_of(folder, ["cluster.usage_s=1"]).cluster.usage_s == 1, "replaces a value that is no longer valid"
    folder.spec.write_text(yaml.safe_dump(older))
    with pytest.raises(Problems, match=r"cluster\.stall_grace: no such setting; did you mean"):
        run_of(folder, ["cluster.stall_grace=3"])


# ---- real runs

STEPS, KEPT = 6, 2
WORDS = ["data.train_batch_size=6", "data.n_prompts=60", "data.n_demos=60", "data.n_val=7", "data.val_batch_size=2",
         f"trainer.total_training_steps={STEPS}", f"trainer.save_freq={KEPT}", "trainer.keep_last=9"]  # fmt: skip
KINDS = {"sft": [], "ppo": ["algorithm.kl_coef=0.05", "model.lora_rank=0"]}
LOSSES = ("train/loss", "val/loss", "actor/pg_loss", "critic/vf_loss", "actor/entropy", "critic/score/mean")


@pytest.fixture(scope="module")
def rlrun(tmp_path_factory: pytest.TempPathFactory, commands: Any) -> Any:
    return commands(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def whole(rlrun: Any, small: list[str]) -> Callable[[str, str], Path]:
    """A run of two processes to its end; each is run once."""
    known: dict[tuple[str, str], Path] = {}

    def run(kind: str, strategy: str) -> Path:
        if (kind, strategy) not in known:
            name = f"{kind}-{strategy}"
            words = [f"algorithm={kind}", *small, *WORDS, *KINDS[kind], f"engine.strategy={strategy}"]
            ran = rlrun("train", *words, "hardware.nproc_per_node=2", f"trainer.experiment_name={name}")
            assert ran.returncode == 0, ran.stdout + ran.stderr
            known[kind, strategy] = rlrun.run(name)
        return known[kind, strategy]

    return run


def broken_off(run: Path, name: str) -> Path:
    """A copy of the run as it was when only the first checkpoint had been written."""
    copy = Path(shutil.copytree(run, run.with_name(name)))
    for step in range(2 * KEPT, STEPS + 1, KEPT):
        shutil.rmtree(copy / "checkpoints" / f"step_{step:06d}")
    return copy


def losses(run: Path) -> list[dict[str, float]]:
    steps = [event.metrics for event in events_of(run / "events.jsonl") if isinstance(event, Step)]
    return [{name: metrics[name] for name in LOSSES if name in metrics} for metrics in steps]


def alerts(run: Path) -> list[tuple[int, str]]:
    return [(event.step, event.text) for event in events_of(run / "events.jsonl") if isinstance(event, Alert)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "strategy", "words"),
    [
        ("sft", "ddp", ["hardware.nproc_per_node=1", "trainer.max_tokens_per_gpu=60"]),
        pytest.param("sft", "ddp", ["hardware.nproc_per_node=3", "engine.strategy=fsdp2"], marks=pytest.mark.long),
        pytest.param("ppo", "fsdp2", ["hardware.nproc_per_node=1"], marks=pytest.mark.long),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, list) else value,
)
def test_it_goes_on_with_the_losses_that_it_would_have_had(
    kind: str, strategy: str, words: list[str], whole: Callable[[str, str], Path], rlrun: Any, tmp_path: Path
) -> None:
    run = whole(kind, strategy)
    copy = broken_off(run, f"{kind}-{tmp_path.name}")
    ran = rlrun("train", "--resume", copy.name, *words)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert alerts(copy) == alerts(run), "what is said of its scores; nothing of where it goes on"
    found, expected = losses(copy), losses(run)
    assert len(found) == len(expected) == STEPS + 1
    for ours, theirs in zip(found[KEPT + 1 :], expected[KEPT + 1 :], strict=True):
        assert ours.keys() == theirs.keys() and len(ours) >= 1
        assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-6)
    stored = yaml.safe_load((copy / "spec.yaml").read_text())
    assert stored["hardware"]["nproc_per_node"] == int(words[0][-1])
    typed = (copy / "words.txt").read_text().splitlines()[-1]
    assert typed == f"rlrun train --resume rlrun/{copy.name} {' '.join(words)}"


@pytest.mark.slow
def test_a_refused_change_leaves_the_run_as_it_is(
    whole: Callable[[str, str], Path], rlrun: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = whole("sft", "ddp")
    before = {path: path.read_bytes() for path in run.iterdir() if path.is_file()}
    monkeypatch.chdir(rlrun.folder)
    fits_not = "data.train_batch_size: 6 rows do not split over 4 processes; use 4 or 8"
    for word, line in (("optim.lr=1", f"✗ optim.lr: {WHAT}"), ("hardware.nproc_per_node=4", fits_not)):
        ran = CliRunner().invoke(app, ["train", "--resume", run.name, word])
        assert (ran.exit_code, ran.stdout) == (2, "")
        assert line in ran.stderr and "Traceback" not in ran.stderr and len(ran.stderr.splitlines()) == 1
    assert {path: path.read_bytes() for path in run.iterdir() if path.is_file()} == before
