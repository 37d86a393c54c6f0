"""What a server says of a run is what the command line prints of it, and what is in its files."""

from __future__ import annotations

import json
import math
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from starlette.testclient import TestClient
from typer.testing import CliRunner

from launcher.cli.main import app
from launcher.core.episode_record import CalledTool, EpisodeRecord, EpisodeTurn
from launcher.core.events import Alert, Sample, Step, TrainingGroup, events_of
from launcher.core.redaction import printable
from launcher.runs.folder import Folder, Lock
from launcher.server.answers import encoded
from launcher.server.routes.answers import GroupAnswer
from launcher.server.routes.app import create_app
from launcher.server.services import ServerSettings
from tests.cli.test_golden import HOSTILE
from tests.server.conftest import only_job, write_run

RUNS = ("sft", "dpo", "grpo", "killed")


@pytest.fixture(scope="module")
def ask(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """`ask(path, run, **query)` gives the JSON of an answer; `status=` is the one that is expected."""
    where = os.getcwd()
    os.chdir(place)  # the commands print paths as they were given
    with TestClient(create_app(ServerSettings(root=Path("runs"))), base_url="http://localhost:8000") as client:
        uuids = {job["run"].partition("/")[2]: job["uuid"] for job in client.get("/api/jobs").json()["items"]}

        def ask(path: str, run: str = "grpo", status: int = 200, **query: Any) -> Any:
            address = path if path.startswith("/api") else f"/api/jobs/{uuids.get(run, run)}/{path}"
            answer = client.get(address, params=query)
            assert answer.status_code == status, answer.text
            assert answer.headers["content-type"] == f"application/{'' if status < 400 else 'problem+'}json"
            return json.loads(answer.text)

        ask.uuids = uuids  # type: ignore[attr-defined]
        yield ask
    os.chdir(where)


def printed(command: str) -> Any:
    ran = CliRunner().invoke(app, shlex.split(command), prog_name="rlrun")
    assert ran.exit_code in (0, 1), ran.output
    return json.loads(ran.stdout)


def without_clock(alerts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in alert.items() if name != "at"} for alert in alerts]


@pytest.mark.parametrize("run", RUNS)
def test_each_answer_is_what_the_command_prints(run, ask):
    command, rows = printed(f"metrics {run} --json"), ask("metrics", run, names="*")
    for row, each in zip(rows, command, strict=True):
        assert row.items() >= {**each["metrics"], "step": each["step"]}.items()
    assert without_clock(ask("findings", run)) == without_clock(printed(f"diagnose {run} --json"))
    assert ask("samples", run) == printed(f"samples {run} --json")
    wrong = ask("samples", run, step=0, wrong=True, limit=2)
    assert wrong == printed(f"samples {run} --step 0 --max-score 0 --limit 2 --json")
    pairs = [{name: pair[name] for name in pair if name not in ("episodes", "changed")}
             for pair in ask("prompts", run, steps="0,6")["pairs"]]  # fmt: skip
    assert pairs == printed(f"samples {run} --compare 0 6 --json")
    kept = [node for node in ask("checkpoints", run) if node["kept"]]
    ours = [{name: value for name, value in node.items() if name not in ("kept", "eval_results")} for node in kept]
    assert ours == printed(f"checkpoints list {run} --no-verify --json")


def test_runs_beside_one_another_are_as_the_commands_say(ask):
    jobs = f"{ask.uuids['grpo']},{ask.uuids['again']}"
    assert ask("/api/compare", jobs=jobs) == printed("compare grpo again --json")
    found, command = ask("config/diff", other=ask.uuids["again"]), printed("config diff grpo again --json")
    assert {**found, "a": "grpo", "b": "again"} == command


def test_the_words_of_the_documents_stand_beside_our_names(ask):
    rows = ask("metrics")
    assert all(row["reward_mean"] == row["critic/score/mean"] for row in rows)
    assert rows[2]["entropy"] == "NaN" and rows[3]["policy_loss"] == rows[3]["actor/pg_loss"]
    assert ask("metrics", "sft")[1]["loss"] == 2.75
    assert [row["step"] for row in ask("metrics", **{"from": 2, "to": 3})] == [2, 3]
    assert set(ask("metrics", names="reward_mean")[0]) == {"step", "critic/score/mean", "reward_mean"}
    assert ask("metrics", **{"from": 900}) == []


def test_names_and_curves(ask, place):
    names = {each["name"]: each for each in ask("names")}
    score = names["critic/score/mean"]
    assert (score["label"], score["better"], score["count"], score["last"]) == ("score", "up", 7, 0.6)
    assert printable(HOSTILE) in names and HOSTILE not in names
    found = ask("curves", names="entropy,reward_mean", buckets=3)["curves"]
    assert list(found) == ["actor/entropy", "critic/score/mean"]
    assert found["critic/score/mean"]["min"][0] == 0.0 and found["critic/score/mean"]["max"][-1] == 0.6
    whole = ask("curves", names="critic/score/mean", x="time")
    steps = [event for event in events_of(place / "runs/p/grpo/events.jsonl") if isinstance(event, Step)]
    of = whole["curves"]["critic/score/mean"]
    assert of["mean"] == of["min"] == [step.metrics["critic/score/mean"] for step in steps]
    assert of["x"] == [step.at for step in steps]
    lines = (place / "runs/p/grpo/events.jsonl").read_text().splitlines()
    assert whole["seq"] == len(lines) - 1
    assert ask("curves", x="tokens", status=404)["problems"][0]["where"] == "x"
    assert ask("curves", names=HOSTILE.replace("<", "?"), status=404)["problems"]


def test_a_step_its_groups_and_their_tokens(ask):
    found = ask("groups", step=6)["items"]
    assert [each["group"] for each in found] == [1, 2] and found[0]["spread"] == 1.0
    assert ask("groups")["total"] == 4
    assert [each["step"] for each in ask("groups", size=3, page=2)["items"]] == [1]
    assert ask("groups", step=1)["total"] == 2 and ask("groups", step=9)["items"] == []
    group = ask("groups/6/1")
    assert [each["tokens"] for each in group["answers"]] == [False, True, False]
    assert group["answers"][2]["score"] == "NaN" and group["answers"][1]["parts"] == {"format": 0.0}
    assert group["prompt"] == f"<b>1 + 1</b> {HOSTILE}"  # markup is text
    tokens = [(each["text"], each["learns"], each["ratio"]) for each in ask("tokens/6/1/1")]
    assert tokens == [("one", True, 1.0), ("<i>", True, math.e), ("pad", False, None)]
    for path in ("tokens/6/1/0", "tokens/6/1/7", "tokens/6/9/0", "tokens/3/1/0", "groups/6/3"):
        assert ask(path, status=404)["problems"][0]["code"] == "not-found"
    assert ask("tokens/6/2/0", status=422)["problems"][0]["code"] == "bad-file"


def test_an_episode_is_told_turn_by_turn(serve, root):
    call = CalledTool("search", '{"words": "a"}', 0.25, "no index")
    turns = (EpisodeTurn("search", "3 mails", 0.5, -0.25, (call,)), EpisodeTurn("so", reward=math.nan))
    episode = EpisodeRecord("turn-limit", turns, "")
    fault = EpisodeRecord("environment-fault", (), "the index is gone")
    of = {"at": 1.0, "data_source": "mail", "prompt": "who?", "ground_truth": "Ann"}
    group = TrainingGroup(
        **of, step=2, group=1, responses=("so", ""), scores=(0.5, math.nan), parts={}, advantages=(0.25, 0.0),
        episodes=(episode, fault),
    )  # fmt: skip
    held_out = {**of, "response": "so", "score": 1.0}
    samples = (Sample(**held_out, step=1), Sample(**held_out, step=2, episodes=(episode,)))
    write_run(root / "p" / "agent", more=(group, *samples))
    client = serve()
    job = f"/api/jobs/{only_job(client)['uuid']}"
    answers = client.get(f"{job}/groups/2/1").json()["answers"]
    TypeAdapter(list[GroupAnswer]).validate_python(answers)
    assert answers[0]["episodes"] == json.loads(encoded([episode])) and answers[0]["episodes"][0]["turns"][1] == {
        "text": "so", "observation": "", "reward": "NaN", "advantage": None, "calls": [],
    }  # fmt: skip
    assert (answers[1]["episodes"][0]["outcome"], answers[1]["episodes"][0]["fault"]) == (fault.outcome, fault.fault)
    [pair] = client.get(f"{job}/prompts").json()["pairs"]
    assert pair["episodes"] == [[], answers[0]["episodes"]]


def test_steps_that_share_no_prompt_have_no_pairs(client, root):
    of = {"at": 1.0, "group": 1, "data_source": "", "ground_truth": "", "parts": {}, "advantages": (0.0,)}
    groups = (TrainingGroup(**of, step=step, prompt=f"{step}", responses=("2",), scores=(1.0,)) for step in (1, 2))
    write_run(root / "p" / "a", more=tuple(groups))
    at = f"/api/jobs/{only_job(client)['uuid']}/prompts"
    assert client.get(at).json() == client.get(f"{at}?steps=1,2").json() == {"steps": [1, 2], "pairs": []}
    assert client.get(f"{at}?steps=1,3").status_code == 404


def test_a_prompt_over_time(ask):
    found = ask("prompts")
    assert found["steps"] == [0, 6] and found["pairs"][0]["step"] == [0, 6]
    [pair] = [each for each in found["pairs"] if each["prompt"] == "3 + 1 = ?"]
    assert [each["what"] for each in pair["changed"]] == ["gone", "new", "same"]
    assert ask("prompts", steps="0,5", status=404)["problems"]


def test_a_log_is_read_by_bytes(ask, place):
    text = (place / "runs/p/grpo/console.log").read_bytes()
    offset, found = 0, ""
    while offset < len(text):
        part = ask("logs", offset=offset, limit=997)
        assert part["offset"] == offset and part["size"] == len(text)
        offset, found = part["next"], found + part["text"]
    assert found.encode() == text and "�" not in found
    last = ask("logs", offset=-10)
    assert text.endswith(last["text"].encode()) and last["next"] == len(text)
    assert ask("logs", offset=len(text) + 99)["text"] == ""
    for first in range(40, 60):  # wherever a character begins
        assert "�" not in ask("logs", offset=first, limit=4)["text"]
    assert ask("logs", "sft") == {"text": "", "offset": 0, "next": 0, "size": 0}


def test_settings_checkpoints_and_usage(ask):
    settings = {row["setting"]: row for row in ask("config")["settings"] if not row["group"]}
    assert settings["trainer.experiment_name"]["value"] == "grpo" and "spec.yaml:" in settings["seed"]["origin"]
    assert [ask("config", run)["arguments"] for run in ("grpo", "sft")] == [["algorithm=grpo", "data=a b.jsonl"], []]
    newest, gone = ask("checkpoints")
    assert (newest["step"], newest["kept"], newest["bytes"]) == (6, True, 100)
    assert newest["eval_results"].keys() == {"maths"}
    assert (gone["step"], gone["kept"], gone["path"]) == (5, False, "checkpoints/step_000005")
    assert "eval_results" not in gone
    usage = ask("usage", buckets=4)
    assert [each["rank"] for each in usage] == [0, 1] and len(usage[0]["series"]["gpu_percent"]["x"]) == 4
    assert usage[1]["series"]["cpu_percent"]["max"][-1] == 19 and "disk_free_bytes" not in usage[0]["series"]


def test_links_lead_nowhere_else(ask, place):
    (place / "runs" / "p" / "dpo" / "console.log").symlink_to(place / "secret.log")
    assert "not for you" not in json.dumps(ask("logs", "dpo", status=403))
    for path in ("metrics", "logs", "findings"):
        assert ask(path, "linked", status=403)["problems"][0]["got"] == "is a link"


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("metrics", {"from": "NaN"}), ("curves", {"buckets": 10**9}), ("curves", {"x": "<script>"}),
        ("logs", {"limit": 10**12}), ("logs", {"offset": 10**30}), ("groups", {"step": 10**40}),
        ("groups", {"size": 10**6}), ("prompts", {"steps": "1,2;3"}), ("tokens/1/1/NaN", {}),
    ],
)  # fmt: skip
def test_what_is_no_number_or_too_large_is_a_problem(path, query, ask):
    found = ask(path, status=422, **query)
    assert found["status"] == 422 and found["problems"][0]["got"]


def test_comparisons_are_bounded_and_of_jobs_that_are_there(ask):
    assert ask("/api/compare", jobs=",".join([ask.uuids["grpo"]] * 21), status=422)
    assert ask("/api/compare", jobs="nonsense", status=404)["problems"][0]["where"] == "uuid"
    assert ask("/api/compare", jobs=ask.uuids["grpo"], status=422)
    assert ask("metrics", "../../etc", status=404)


def test_prometheus_has_every_run_once(root, serve):
    """A run that is written has all values, one that has ended only its step and its alerts."""
    write_run(root / "math" / "old", 2, more=(Alert(at=1.0, step=2, text="x", level="critical"),))
    with Lock(Folder(write_run(root / "math" / 'a"b'))):
        answer = serve().get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    page = answer.text.splitlines()
    assert len(set(page)) == len(page)
    assert {
        'rlrun_step{run="math/old"} 2.0', 'rlrun_step{run="math/a\\"b"} 3.0',
        'rlrun_alerts{run="math/old",level="critical"} 1.0', 'rlrun_up{run="math/old"} 0.0',
        'rlrun_up{run="math/a\\"b"} 1.0', f'rlrun_metric{{run="math/a\\"b",name="critic/score/mean"}} {0.1 * 3}',
    } <= set(page)  # fmt: skip
    assert not [line for line in page if line.startswith('rlrun_metric{run="math/old"')]
