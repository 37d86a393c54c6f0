"""Every `rlrun` command that pages, recipes, comments of conf/ and the help print is one that works when it is typed.

All are collected by `printed` and parsed by the commands themselves. Those that describe a run are planned: rows and
models that a hub or a person would have are small files here, GPUs are simulated. Those that only read are run.
`console` blocks run in test_readme.py, `bash` blocks with models and data in hubs/test_commands.py.
"""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from launch_model import Model
from typer._click.exceptions import BadOptionUsage, MissingParameter
from typer.testing import CliRunner

from launcher.cli.main import COMMANDS, app, load
from launcher.core import checkpoints, machine
from launcher.core.events import Ended, Event, Loaded, Sample, Saved, Started, Step, TrainingGroup, to_line
from launcher.preflight.plan import plan
from launcher.spec.stored import to_yaml

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
STANDS_FOR = {
    "RUN": "first", "NAME": "measured", "MODEL": "small", "FILE": "train.jsonl", "FOLDER": "out", "PROMPT...": "Hi",
    "F": "train.jsonl", "ARGUMENTS": "algorithm=sft model=tiny data=reverse", "GROUP=CHOICE": "algorithm=grpo",
    "BASE": "small", "ONE": "small", "OTHER": "small", "MERGED": "out", "LOG": "verl.log", "ROWS": "train.jsonl",
    "A": "first", "B": "second", "UUID": "my-job-001",
}  # fmt: skip
"""What a person types in place of a word in capitals."""
ROWS: dict[str, dict[str, Any]] = {
    "sft": {"prompt": "2+2?", "response": "4"}, "dpo": {"prompt": "a", "chosen": "b", "rejected": "c"},
    "grpo": {"prompt": "2+2?", "reward_model": {"ground_truth": "4"}, "data_source": "openai/gsm8k"},
}  # fmt: skip
READS = {("runs",), ("show",), ("status",), ("watch",), ("logs",), ("checkpoints",), ("config", "show"), ("metrics",),
         ("config", "diff"), ("model", "list"),
         ("samples",), ("diagnose",), ("compare",), ("report",)}  # fmt: skip
ELSEWHERE = {"export", "--follow", "-f", "own", "<(zcat", "rates-sweep1", "rates-sweep1-lr_0.0003-seed_2"}
"""Words of commands that read more than a run's folder or a log."""
STEPS = (0, 10, 20, 40, 100, 1120)
MEASURED = ("training/global_step", "critic/score/mean", "critic/frac_reward_zero_std", "response_length/mean",
            "actor/entropy", "actor/kl_loss", "timing_s/step", "perf/throughput", "val/test_score/x",
            "val/loss")  # fmt: skip
"""Steps and metrics that pages name."""
GPU = machine.Gpus("1", "12.4", (machine.Gpu(0, "NVIDIA H100 80GB HBM3", 80 * 2**30, 79 * 2**30),))


@dataclass(frozen=True)
class Printed:
    where: str
    text: str
    inline: bool
    """In a sentence, where a command may be named without its arguments."""
    shown: bool = False
    """With its output, or in a row of commands: other tests run it."""

    def __str__(self) -> str:
        return f"{self.where}: {self.text[:60]}"

    @property
    def words(self) -> list[str]:
        words = shlex.split(re.sub(r"\s#.*", "", self.text))
        return [part for word in words[1:] for part in (STANDS_FOR[word].split() if word in STANDS_FOR else [word])]


def printed() -> Iterator[Printed]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            yield from _of_block(page, language, block)
        for code in re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)):
            if re.match(r"rlrun [a-z-]", code):
                yield Printed(page.name, code, True)
    for script in sorted((ROOT / "recipes").glob("*.sh")):
        for line in script.read_text().splitlines():
            if line.startswith("# ") and (found := re.match(r"# (recipes/\S+) (.*)", line)):
                yield Printed(script.name, f"rlrun train --recipe {ROOT / found[1]} {found[2]}", False)
        several = len(re.findall(r"^rlrun train", script.read_text(), re.MULTILINE)) > 1
        if several:
            yield from (Printed(script.name, f"rlrun train --recipe {script}#{number}", False) for number in (1, 2))
    for file in sorted((ROOT / "conf").rglob("*.yaml")):
        for line in file.read_text().splitlines():
            if "rlrun " in (comment := line.partition("#")[2]):
                yield Printed(str(file.relative_to(ROOT)), comment[comment.index("rlrun ") :].strip("`. "), True)
    for entry in COMMANDS:
        yield from (Printed(f"help of {entry.name}", example, False) for example in entry.examples)


def _of_block(page: Path, language: str, block: str) -> Iterator[Printed]:
    for line in re.sub(r"\\\n\s*", "", block).splitlines():
        for part in re.split(r"&&|\|(?!\|)|;", line.removeprefix("$ ")):
            if re.match(r"rlrun\s", part.strip()) and (language in ("bash", "console") or line.startswith("$ ")):
                whole_row = "rlrun chat" in block or "rlrun generate" in block
                whole_row |= page.name == "extend.md" and "data=sums" in part  # test_extend.py trains
                yield Printed(page.name, part.strip(), False, language == "console" or whole_row)


ALL = sorted({(one.where, one.text): one for one in printed()}.values(), key=lambda one: (one.where, one.text))


def parse(words: list[str]) -> None:
    """As the command line reads them, up to the call. Raises what typer raises."""
    entry = next(entry for entry in COMMANDS if entry.name == words[0])
    command, rest, context = load(entry), words[1:], None
    while True:
        more = {"ignore_unknown_options": True} if entry.other_options else {}
        context = command.make_context(command.name or words[0], list(rest), parent=context, **more)
        if not hasattr(command, "resolve_command") or not (rest := [*context._protected_args, *context.args]):
            return
        _, command, rest = command.resolve_command(context, rest)


def only_named(one: Printed) -> bool:
    """Whether it, or its last option, has no arguments."""
    try:
        parse(one.words)
    except (MissingParameter, BadOptionUsage):
        return True
    return False


def test_there_are_such_commands() -> None:
    assert {one.where for one in ALL} >= {"README.md", "trl.md", "clusters.md", "sft.sh", "help of plan"}
    assert len(ALL) > 100
    assert len(PLANNED) > 25
    assert len(RUN) > 15


def test_they_parse() -> None:
    unknown = [str(one) for one in ALL for word in one.words if re.fullmatch(r"[A-Z]{3,}\W*", word)]
    assert unknown == [], "add it to STANDS_FOR"
    complete = [one for one in ALL if not one.inline and one.words[0] not in ("--help", "--install-completion")]
    assert [str(one) for one in complete if only_named(one)] == []


COMPLETE = [one for one in ALL if not one.shown and not (one.inline and len(one.words) == 1 and one.words != ["runs"])]
PLANNED = [one for one in COMPLETE if one.words[0] in ("train", "plan") and "--resume" not in one.words
           and any("=" in word or word == "--recipe" for word in one.words)]  # fmt: skip
RUN = [one for one in COMPLETE if any(tuple(one.words[: len(read)]) == read for read in READS)
       and not ELSEWHERE & {*one.words} and one.words != ["watch", "verl.log"]]  # fmt: skip
RUN = list({tuple(one.words): one for one in RUN}.values())


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What each test copies: a model's folder, rows, two runs with a checkpoint, a log."""
    folder = tmp_path_factory.mktemp("template")
    Model().save(folder / "small")
    write_rows(folder / "train.jsonl", "sft")
    for name in ("first", "second"):
        make_run(folder / "runs" / "rlrun" / name)
    steps = [f"step:{step} - " + " - ".join(f"{key}:{0.5}" for key in MEASURED) for step in STEPS]
    answer = "[prompt] 1 + 1 = ?\n[response] 3\n[ground_truth] 2\n[score] 0.0"
    (folder / "verl.log").write_text("".join(f"{answer}\n{line}\n" for line in steps))
    return folder


@pytest.fixture
def folder(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a person would be."""
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(machine, "query_gpus", lambda: GPU)
    return tmp_path


def make_run(folder: Path) -> None:
    """A run that has ended, with its last checkpoint."""
    folder.mkdir(parents=True)
    page = plan(["algorithm=sft", "model=tiny", "data=reverse"])
    assert page.run
    (folder / "spec.yaml").write_text(to_yaml(page.run))
    saved = checkpoints.write(folder / "checkpoints", 2, lambda place: Model().save(place / "policy"))
    (folder / "console.log").write_text("step:2\n")
    loaded = Loaded(at=2.0, rows=8, refused=0, val_rows=0, val_refused=0, steps_per_epoch=2, steps=2)
    shared: dict[str, Any] = {"data_source": "maths", "prompt": "1 + 1 = ?", "ground_truth": "2"}
    group: dict[str, Any] = {"responses": ("2", "3"), "scores": (1.0, 0.0), "parts": {}, "advantages": (1.0, -1.0)}
    events: list[Event] = [Started(at=1.0, run="rlrun/first", algorithm="SFT", processes=1), loaded]
    for step in STEPS:
        events += [Sample(at=3.0, step=step, response="3", score=0.0, **shared),
                   *(TrainingGroup(at=3.0, step=step, group=number, **shared, **group) for number in (1, 2, 3)),
                   Step(at=3.0, step=step, metrics=dict.fromkeys(MEASURED, 0.5))]  # fmt: skip
    events += [Saved(at=4.0, step=2, path=str(saved.relative_to(folder))), Ended(at=5.0, how="finished")]
    (folder / "events.jsonl").write_text("".join(to_line(event) + "\n" for event in events))


def write_rows(file: Path, kind: str) -> None:
    """Enough for any batch, as the file's ending says."""
    rows = [{**ROWS.get(kind, ROWS["grpo"]), "n": number} for number in range(600)]
    if file.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), file)
    elif file.suffix == ".json":
        file.write_text(json.dumps(rows))
    elif file.suffix == ".csv":
        with file.open("w", newline="") as text:
            writer = csv.DictWriter(text, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def stand_in(one: Printed, folder: Path) -> None:
    """The files that the command names and its page does not show, and the run that it goes on from."""
    kind = next((found for found in ROWS if re.search(rf"\b{found}(\.sh)?\b", one.text)), "grpo")
    for setting, name in re.findall(r"(\S+)=((?:\w[\w.-]*/)*\w[\w-]*\.(?:jsonl|json|csv|parquet))\b", one.text):
        assert setting in ("data", "data.train_files", "data.val_files"), f"{setting}: what is in {name}?"
        write_rows(folder / name, kind)
    recipe = ROOT / "recipes" / one.where
    later = recipe.is_file() and not one.text.endswith("#1")
    text = recipe.read_text().replace("$name", "unknown") if later else one.text
    for name in re.findall(r"""model(?:\.path)?="?(runs/[\w./-]+)""", text):
        make_run(folder / name)


@pytest.fixture
def typed_in(folder: Path, all_pages: Any) -> Callable[[Printed], list[str]]:
    """Makes the files that a command needs; its words."""

    def make(one: Printed) -> list[str]:
        for name, text in next((page.files for page in all_pages if page.path.name == one.where), {}).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        stand_in(one, folder)
        return one.words

    return make


@pytest.mark.parametrize("one", PLANNED, ids=str)
def test_it_plans(one: Printed, typed_in: Callable[[Printed], list[str]]) -> None:
    words = [word for word in typed_in(one)[1:] if word not in ("-d", "--dry-run")]
    ran = CliRunner().invoke(app, [*(["train", "--dry-run"] if "-m" in words else ["plan"]), *words])
    failed = set(re.findall(r"^FAIL  (\S+)", ran.output, re.MULTILINE))
    assert failed <= ({"cluster"} if "cluster=ray" in words else set()), ran.output  # no cluster is up
    assert ran.exit_code == (2 if failed else 0), ran.output


@pytest.mark.parametrize("one", RUN, ids=str)
def test_it_runs(one: Printed, folder: Path, typed_in: Callable[[Printed], list[str]]) -> None:
    if only_named(one):
        return
    words = typed_in(one)
    if words[0] == "checkpoints" and words[-1] != "first":
        make_run(folder / "runs" / "rlrun" / words[-1])
    ran = CliRunner().invoke(app, words)
    assert ran.exit_code == 0, ran.output
