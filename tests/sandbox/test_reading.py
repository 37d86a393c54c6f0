"""What depends on the machine is named; what is not on this machine is taken as there."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.core.problems import Problems
from launcher.sandbox import confine
from launcher.sandbox.calls import COMPUTE, SHELL
from launcher.sandbox.confine import ARCHITECTURES, seccomp_filter, shell_profile
from launcher.sandbox.reading import Reading, read_script
from launcher.tools.importing.launches import Launch, launch_of

pytestmark = pytest.mark.skipif(bool(confine.missing()), reason="this system has no sandbox")
RUN = "python3 -m verl.trainer.main_ppo"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(text: str, *arguments: str, confined: bool = True, **environment: str) -> Reading:
    Path("run.sh").write_text(text.replace("RUN", RUN))
    return read_script(Path("run.sh"), arguments, environment, confined=confined)


def launches(reading: Reading) -> list[Launch]:
    return [launch for one in reading.started if (launch := launch_of(one, reading.written))]


def words(reading: Reading) -> list[tuple[str, ...]]:
    return [launch.words for launch in launches(reading)]


def test_values_that_differ_between_machines_are_open() -> None:
    found = read("N=$(nvidia-smi -L | wc -l)\nRUN a=x-$(date +%m%d)-y n=$N w=$((N * 2)) h=$(hostname) p=$RANDOM\n")
    ((a, n, w, h, p),) = words(found)
    assert (a, n, h) == ("a=x-{date +%m%d}-y", "n={nvidia-smi -L}", "h={hostname}")
    assert w.startswith("w={") and p.startswith("p={")
    assert "run.sh:2 $(date +%m%d): only running the script tells" in [f"{one.place} {one}" for one in found.open]


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        ("[ $(hostname) = node-a ]", "is not started where hostname says 'another'"),
        ("[ $(nvidia-smi -L | wc -l) -lt 8 ]", "is started only where nvidia-smi says 'GPU 0: NVIDIA A100' and 3"),
        ("command -v nvidia-smi > /dev/null", "is not started where nvidia-smi is not there"),
    ],
)
def test_the_answer_that_decides_a_branch_is_named(condition: str, reason: str) -> None:
    found = read(f"if {condition}; then\n  RUN only=1\nfi\nRUN always=1\n")
    assert sorted(words(found)) == [("always=1",), ("only=1",)]
    (note,) = [str(part) for part in found.open if "only=1" in part.text]
    assert reason in note


def test_what_is_not_on_this_machine_is_taken_as_there(folder: Path) -> None:
    found = read(
        "set -euo pipefail\ncd /workspace/verl\nmkdir -p /data/logs\nsource /opt/env.sh\nC=/opt/conda\n"
        "$C/bin/python -m verl.trainer.main_ppo a=1 d=$PWD f=/opt/conda/x > /data/logs/a.log 2>&1\n"
        "exec /usr/local/bin/python3 -m verl.trainer.main_ppo b=2\n"
    )
    assert not found.refused
    assert words(found) == [("a=1", "d=/workspace/verl", "f=/opt/conda/x"), ("b=2",)]
    assert any("/opt/env.sh: cannot be used here; taken as an empty file" in str(part) for part in found.open)


def test_programs_that_start_others_are_gone_through() -> None:
    found = read(
        "sbatch -N 2 <<EOF\n#!/bin/bash\n#SBATCH -n 1\nsrun RUN a=1\nEOF\nsbatch --wrap='RUN a=2'\n"
        "docker run -e K=v image bash -c 'RUN a=3'\nexport OURS=1\n"
        'ray job submit --runtime-env-json \'{"env_vars": {"R": "w"}}\' -- RUN a=4\n'
        "site_launch --nodes 2 -- RUN a=5\nenv -u OURS nohup timeout 10 RUN a=6\npip install torchrun a=7\n"
        "torchrun --nnodes 1 --nproc_per_node=4 -m verl.trainer.sft_trainer a=8\n"
    )
    assert words(found) == [("a=1",), ("a=2",), ("a=3",), ("a=4",), ("a=5",), ("a=6",), ("a=8",)]
    of_docker, of_ray, *_, last = launches(found)[2:]
    assert (of_docker.environment, of_ray.environment) == ({"K": "v"}, {"R": "w"})
    assert (last.environment, last.processes) == ({"OURS": "1"}, {"nnodes": "1", "nproc-per-node": "4"})


def test_configs_that_the_script_writes_are_read_and_stay_in_the_sandbox(folder: Path) -> None:
    found = read("D=$(mktemp -d)\necho 'a: 1' > $D/own.yaml\necho \"b: $(nproc)\" > c.yaml\nRUN --config-dir=$D\n")
    assert found.written == {"{mktemp}/own.yaml": "a: 1\n", f"{folder}/c.yaml": "b: {nproc}\n"}
    assert words(found) == [("--config-dir={mktemp}",)]
    assert [path.name for path in folder.iterdir()] == ["run.sh"]


def test_variables_that_nobody_sets_are_empty() -> None:
    found = read('RUN a=$A b=$B c=${C:-1} d="$D" $@ # $E\n', B="given")
    assert words(found) == [("a=", "b=given", "c=1", "d=")] and not found.open


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("set -u\nRUN a=$A\n", "run.sh:2: A is not set, and set -u ends the script there; use --env A=VALUE"),
        ("RUN a=${1:?a path}\n", "run.sh:1: 1: a path ends the script there; give its own arguments after --"),
        ("\nif true; then\n", "run.sh:3: bash says: syntax error: unexpected end of file"),
        ("\n[ -f rows ] || exit 3\nRUN\n", "run.sh:2: the script ended here before it started anything (exit code 3)"),
        ("RUN a=1\nwhile true; do x=1; done\n", "run.sh:2: used more than 1 s of processor time"),
    ],
)
def test_why_a_script_is_not_read_to_its_end(text: str, line: str) -> None:
    found = read(text)
    assert [str(problem)[: len(line)] for problem in found.refused] == [line]
    assert len(launches(found)) == ("while" in text)


def test_many_launches_and_loops_end() -> None:
    """50 launch lines, and a loop of thousands of rounds."""
    found = read("for a in {1..20}; do for b in {1..100}; do :; done; done\n" + "RUN a=1\n" * 50)
    assert len(launches(found)) == 50 and not found.refused


@pytest.mark.parametrize(("content", "line"), [(b"a=1\r\n", "1: has CRLF"), (b"a\nb\0c", "2: has a NUL")])
def test_a_file_that_is_no_script_is_refused(content: bytes, line: str, folder: Path) -> None:
    Path("run.sh").write_bytes(content)
    with pytest.raises(Problems, match=f"run.sh:{line}"):
        read_script(Path("run.sh"))


def test_without_landlock_it_is_refused_or_run_unconfined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confine, "missing", lambda: ("Landlock, which forbids files",))
    with pytest.raises(Problems, match=r"is run confined, and this system has no Landlock.*use --unconfined"):
        read("RUN a=1\n")
    assert words(read("RUN a=1\n", confined=False)) == [("a=1",)]


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_the_filter_fits_both_machines_and_old_kernels(machine: str) -> None:
    """Where Landlock does not watch signals, `kill` is for the own group only: two conditions more."""
    column, architecture = ARCHITECTURES[machine]
    new, old = (seccomp_filter(shell_profile(version), column, architecture) for version in (6, 1))
    assert len(old) - len(new) == 8 * 6 and len(new) // 8 < 4096
    numbers = [number[column] for number in {**COMPUTE, **SHELL}.values() if number[column] is not None]
    assert len(numbers) == len({*numbers})
