"""Our commands on a cluster's head, typed on a node of it and on a machine that is none."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from launcher.clusters.nodes import processes
from launcher.clusters.nodes.home import Home
from launcher.clusters.nodes.processes import DETACHED, MARK, serves_jobs
from launcher.clusters.ray import job_client, remote
from launcher.core.redaction import secrets_of
from launcher.runs.folder import Folder, holder

ROOT = Path(__file__).parents[2]
ENDLESS = ["algorithm=sft", "trainer.total_training_steps=100000", "trainer.test_freq=-1"]
OUTSIDE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
"""Where no process of this machine is seen, so no node of Ray's either."""
has_outside = shutil.which("unshare") and not subprocess.run([*OUTSIDE, "true"], capture_output=True).returncode
from_outside = pytest.mark.skipif(not has_outside, reason="this user may not make a process namespace")
takes_jobs = pytest.mark.skipif(not serves_jobs(), reason="needs ray[default]: make test-jobs")


@pytest.fixture
def run(head: Any, small: list[str], request: pytest.FixtureRequest) -> Iterator[Path]:
    """One that goes on for as long as the test does."""
    name = "-".join(re.findall(r"\w+", request.node.name))
    assert head("train", "-d", *small, *ENDLESS, f"trainer.experiment_name={name}").returncode == 0
    yield head.run(name)
    head("stop", "--now", str(head.run(name)))


class Outside:
    """`rlrun WORDS` on a machine that is no node, called with `--cluster ADDRESS`, and with the variables in `env`."""

    def __init__(self, folder: Path) -> None:
        self.home = Home(folder / "cluster")
        node = self.home.node()
        assert node
        self.address = node.address
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        self.env |= {"RLRUN_CLUSTER": str(folder / "none"), "HOME": str(folder)}
        self.env |= {"RAY_ADDRESS": "http://127.0.0.1:1", "http_proxy": "http://127.0.0.1:1"}  # these lead elsewhere

    def begin(self, *words: str, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*OUTSIDE, sys.executable, "-m", "launcher", *words], cwd="/",
            env={**self.env, **env}, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def ran(self, *words: str, **env: str) -> tuple[int, str, str]:
        begun = self.begin(*words, **(env or {"RAY_AUTH_TOKEN_PATH": str(self.home.token)}))
        out, wrong = begun.communicate(timeout=60)
        return begun.returncode, out, wrong

    def __call__(self, *words: str, **env: str) -> tuple[int, str, str]:
        return self.ran(*words, "--cluster", self.address, **env)


@pytest.fixture
def outside(head: Any) -> Outside:
    return Outside(head.folder)


def at_head(command: str, run: Path) -> list[psutil.Process]:
    mark = ["launcher", command, "--root=runs"]
    found = (process for process in psutil.process_iter(["cmdline"]) if str(run) in (process.info["cmdline"] or []))
    return [process for process in found if any(process.info["cmdline"][at:][:3] == mark for at in range(6))]


@pytest.mark.slow
@takes_jobs
def test_what_the_head_refuses_comes_here(head: Any) -> None:
    gone = head("status", "nobody", "--cluster", "auto", cwd="/")
    assert gone.returncode == 2 and "'nobody': no log file, and no run of that name in runs" in gone.stderr
    assert head("stop", "nobody", "--cluster", "127.0.0.1:9").stderr.startswith("✗ cluster: 127.0.0.1:9: connection")
    assert "is not an address" in head("stop", "nobody", "--cluster", "nowhere").stderr


# ---- a machine that is no node


@pytest.mark.slow
@takes_jobs
@from_outside
def test_a_machine_outside_sees_and_stops_a_run(head: Any, outside: Outside, run: Path) -> None:
    code, out, wrong = outside("status", str(run), "--json")
    assert code == 0 and json.loads(out)["status"] == "running", wrong
    code, out, wrong = outside("status", "nobody")
    assert code == 2 and out == "" and "'nobody': no log file, and no run of that name in runs" in wrong
    assert outside("stop", str(run))[:2] == (0, f"rlrun/{run.name}: stopped\n")
    assert holder(Folder(run)) is None and list(run.glob("checkpoints/step_*"))
    assert outside("logs", str(run))[:2] == (0, (run / "console.log").read_text())


@pytest.mark.slow
@takes_jobs
@from_outside
def test_nothing_is_left_of_who_looked_from_outside(outside: Outside, run: Path, until: Callable[..., None]) -> None:
    looks = outside.begin(
        "logs", "-f", str(run), "--cluster", outside.address, RAY_AUTH_TOKEN=outside.home.token.read_text()
    )
    assert looks.stdout
    while "step:" not in looks.stdout.readline():
        assert looks.poll() is None
    assert at_head("logs", run)
    os.killpg(looks.pid, signal.SIGTERM)
    assert looks.wait(30) == 0
    until(lambda: not at_head("logs", run))
    assert holder(Folder(run)) is not None


@pytest.mark.slow
@from_outside
@pytest.mark.parametrize(
    ("env", "told"),
    [
        pytest.param(
            {"RAY_AUTH_TOKEN": "not-this-one-0123456789abcdef"},
            "refuses this token, or none; set RAY_AUTH_TOKEN_PATH to",
            marks=takes_jobs,
        ),
        pytest.param({"RAY_AUTH_MODE": "disabled"}, "the cluster refuses this token, or none", marks=takes_jobs),
        ({"RAY_AUTH_MODE": "token"}, "/.ray/auth_token: no such file or directory; use a copy of the head's token"),
        ({"RAY_AUTH_TOKEN_PATH": "/no/such"}, "RAY_AUTH_TOKEN_PATH: /no/such: no such file or directory"),
    ],
)
def test_who_has_not_the_token_is_told(env: dict[str, str], told: str, outside: Outside) -> None:
    code, out, wrong = outside("status", "nobody", **env)
    assert code in (1, 2) and out == "" and told in wrong, wrong
    assert "StackTrace" not in wrong, "Ray would abort"


@pytest.mark.slow
@from_outside
def test_a_run_of_a_machine_that_is_no_node_is_told_at_once(outside: Outside, small: list[str], tmp_path: Path) -> None:
    there = ["cluster=ray", f"cluster.address={outside.address}", "cluster.wait_s=2"]
    named = [f"trainer.run_root={tmp_path}", "trainer.experiment_name=a"]
    began = time.monotonic()
    let_in = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(outside.home.token)}
    code, out, wrong = outside.ran("train", *small, "algorithm=sft", *there, *named, **let_in)
    assert code == 2 and "this machine is not a node of it; use rlrun cluster join" in wrong, wrong + out
    assert time.monotonic() - began < 30, "Ray looks for a node for a minute"


@pytest.mark.slow
@from_outside
@pytest.mark.skipif(serves_jobs(), reason="this cluster has a job server")
def test_without_a_job_server_nobody_is_served(outside: Outside) -> None:
    code, _, wrong = outside("status", "nobody")
    assert code == 2 and "the client of a job server is not installed; pip install 'rlrun[jobs]'" in wrong, wrong


@pytest.mark.slow
def test_a_head_that_was_killed_comes_back_with_its_node(head: Any, until: Callable[..., None]) -> None:
    home = Home(head.folder / "cluster")
    node, before = home.node(), home.state()
    assert node and before
    (server,) = [process for process in processes.find(node) if process.name() == "gcs_server"]
    server.kill()
    until(lambda: (state := home.state()) and (state.phase, state.starts) == ("up", before.starts + 1))
    status = json.loads(head("cluster", "status", "--json").stdout)
    assert f"started {before.starts + 1} times" in status["own"]["message"]
    assert [each["alive"] for each in status["nodes"]] == [True]


# ---- without Ray: the shell command of a job, and how its output is read


def ran(asked: remote.JobCommand, **job: str) -> tuple[int, str]:
    """Exit code and output of a job's command, with the variables that Ray gives to `job`."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    run = subprocess.run(["sh", "-c", asked.entrypoint], env={**env, **job}, stdout=subprocess.PIPE, text=True)
    return run.returncode, run.stdout


def heard(output: str, job: str, capsys: pytest.CaptureFixture[str]) -> tuple[int | None, str, str]:
    code = job_client._print_output(iter(output.split("\n")), job)
    return code, *capsys.readouterr()


def test_only_what_the_command_writes_is_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    asked = remote.command(["launcher", "stop", "nobody", "--root", "/no/such"], {"COLUMNS": "99"})
    code, output = ran(asked)
    noise = f"INFO job_manager.py: setting up\n{output}INFO: over"
    told, out, wrong = heard(noise, asked.job, capsys)
    assert (code, told, out) == (2, 2, "") and wrong.startswith("✗ 'nobody': no run of that name"), wrong
    asked = remote.command(["launcher", "--help"], {})
    direct = subprocess.run([sys.executable, "-m", "launcher", "--help"], capture_output=True, text=True)
    assert heard(ran(asked)[1], asked.job, capsys) == (0, direct.stdout, "")
    assert heard("j output\n\na\n\n\nb\n\nj errors\n\nj exit 3\n", "j", capsys) == (3, "\na\n\n\nb\n", "")
    assert heard("j output\nhalf", "j", capsys)[0] is None


def show_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: dict[str, str], **job: str
) -> dict[str, str]:
    """The variables of a detached command that is submitted in `shell`."""
    (tmp_path / "show.py").write_text("import json, os; print(json.dumps(dict(os.environ)))")
    for name, value in {"PYTHONPATH": f"{tmp_path}:{ROOT}", **shell}.items():
        monkeypatch.setenv(name, value)
    secrets_of.cache_clear()
    asked = remote.detached_command(tmp_path, ["show"])
    assert asked and asked.claim and not any(value in asked.entrypoint for value in SECRET.values())
    asked.claim.touch()
    code, output = ran(asked, **job)
    assert code == 0 and not asked.claim.exists()
    (line,) = [line for line in output.splitlines() if line.startswith("{")]
    return dict(json.loads(line))


SECRET = {"HF_TOKEN": "hf_0123456789abcdefABCDEF", "HF_ENDPOINT": "https://me:pass-0123456@hub"}


def test_what_a_job_is_given_and_what_it_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = {"HF_HOME": "/h's", "RLRUN_CLUSTER": "/c", "CUDA_VISIBLE_DEVICES": "0", **SECRET}
    job = {"OMP_NUM_THREADS": "1", MARK: "m", "RAY_ADDRESS": "a", "RAY_CLIENT_MODE": "0", "CUDA_VISIBLE_DEVICES": ""}
    found = show_variables(tmp_path, monkeypatch, shell, **job, HF_HOME="/head", HF_TOKEN="", HF_ENDPOINT="")
    assert found["HF_HOME"] == "/h's" and found["RAY_ADDRESS"] == "a" and found[DETACHED] == "1"
    assert not {"OMP_NUM_THREADS", MARK, "RAY_CLIENT_MODE", "CUDA_VISIBLE_DEVICES"} & found.keys()
    assert found["HF_TOKEN"] == found["HF_ENDPOINT"] == "", "secrets stay here: the head has its own"
    kept = show_variables(tmp_path, monkeypatch, shell, CUDA_VISIBLE_DEVICES="1")
    assert kept["CUDA_VISIBLE_DEVICES"] == "1"


def test_a_job_whose_folder_the_head_does_not_see_is_not_begun(tmp_path: Path) -> None:
    asked = remote.detached_command(tmp_path, ["json.tool", "--help"])
    assert asked and ran(asked)[0] == remote.NO_FOLDER


class Silent:
    """A job server that sends one line and no more; asked whether it is there, it says so `times`."""

    def __init__(self, times: int) -> None:
        self.left, self.stopped = times, False

    def submit_job(self, **_: Any) -> None: ...

    def list_jobs(self) -> list[Any]:
        return []

    async def tail_job_logs(self, job: str) -> AsyncIterator[str]:
        yield f"{job} output\nfirst\nhalf"
        await asyncio.sleep(60)

    def get_job_info(self, _: str) -> None:
        self.left -= 1
        if self.left < 0:
            raise ConnectionRefusedError("gone")

    def stop_job(self, _: str) -> None:
        self.stopped = True


def test_a_silent_head_is_asked_whether_it_is_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Silent(2)
    monkeypatch.setattr(job_client, "_connect", lambda address: server)
    monkeypatch.setattr(job_client, "SILENT_S", 0.05)
    assert job_client.main("h:1", "j", "true", None) == 1
    out, wrong = capsys.readouterr()
    assert out == "first\n" and "ConnectionRefusedError: gone" in wrong
    assert server.left == -1 and server.stopped


def test_a_head_that_says_127_0_0_1_to_all_is_not_taken_for_this_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As one that `ray start --head` began does: what stands there is another cluster's, or nobody's. A run whose job
    cannot be submitted cannot begin any more."""
    monkeypatch.setattr(job_client, "get_address_for_submission_client", lambda address: "http://127.0.0.1:8265")
    claim = tmp_path / "claim"
    claim.touch()
    assert job_client.main("192.0.2.77:6379", "j", "true", claim) == 1
    error = capsys.readouterr().err
    assert error.startswith("the cluster starts no job: 192.0.2.77:6379: its job server answers on its head alone")
    assert not claim.exists()
