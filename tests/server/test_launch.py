"""Jobs from their creation to their end, over the API as document 001 types it."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from launcher.core.events import Step, events_of
from launcher.launch import job
from launcher.runs.folder import Folder, holder
from tests.conftest import DATA, MODEL, wait_until
from tests.server.conftest import PLAN, lose_database, only_job, record_in, write_run

ROWS = [{"data_source": "openai/gsm8k", "prompt": [{"role": "user", "content": f"{n}+1="}], "ability": "math",
         "reward_model": {"style": "rule", "ground_truth": str(n + 1)}} for n in range(24)]  # fmt: skip


@pytest.fixture
def document(tmp_path):
    """The document's body, its files here, and so small that it trains in seconds."""
    for name, rows in (("train", ROWS[:16]), ("test", ROWS[16:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return {
        "name": "qwen7b-grpo-math", "description": "Qwen2.5-7B GRPO training on GSM8K", "model_path": "tiny",
        "model_size": "7B", "algorithm": "grpo", "train_data_path": str(tmp_path / "train.jsonl"),
        "eval_data_path": str(tmp_path / "test.jsonl"), "num_gpus": 8, "learning_rate": 1e-6, "batch_size": 8,
        "num_epochs": 1, "context_length": 48, "rollout_n": 5, "kl_coef": 0.001,
    }  # fmt: skip


def ended(client, uuid, *, status="finished"):
    def node():
        return client.get(f"/api/jobs/{uuid}").json()

    wait_until(lambda: node()["status"] not in ("created", "waiting", "running", "stopping", "pausing"))
    assert node()["status"] == status, node()
    return node()


def test_the_documents_requests_train_a_job_to_its_end(root, client, document):
    response = client.post("/api/jobs", json=document)
    assert response.status_code == 201, response.json()
    job = response.json()
    assert job.items() >= {**document, "status": "created", "origin": "rlrun"}.items()
    assert client.post(f"/api/jobs/{job['uuid']}/start").status_code == 202
    done = ended(client, job["uuid"], status="doubtful")  # it learns nothing in two steps
    expected = {**document, "run": "rlrun/qwen7b-grpo-math", "step": 2, "steps": 2, "progress": 1.0}
    assert done.items() >= expected.items()
    folder = root / done["run"]
    assert record_in(folder)["uuid"] == job["uuid"]
    assert any(isinstance(event, Step) and event.step == 2 for event in events_of(folder / "events.jsonl"))
    for word in ("start", "resume"):
        again = client.post(f"/api/jobs/{job['uuid']}/{word}")
        assert (again.status_code, again.json()["problems"][0]["got"]) == (409, "is doubtful")
    assert again.json()["problems"][0]["fix"].startswith("trainer.total_training_steps=4 would go on")
    again = client.post(f"/api/jobs/{job['uuid']}/resume", json={"from_step": 9})
    assert (again.status_code, again.json()["problems"][0]["fix"]) == (422, "use 2")


TINY = ["algorithm=sft", *MODEL, *DATA, "engine.num_threads=1"]


def test_a_run_is_paused_resumed_and_outlives_its_server(root, serve):
    client = serve()
    body = {"name": "long", "arguments": [*TINY, "trainer.total_training_steps=100000", "trainer.save_freq=1000"]}
    uuid = client.post("/api/jobs", json=body).json()["uuid"]
    client.post(f"/api/jobs/{uuid}/start")
    wait_until(lambda: client.get(f"/api/jobs/{uuid}").json()["step"] > 0)
    assert client.post(f"/api/jobs/{uuid}/rerun", json={"arguments": ["optim.lr=x"]}).status_code == 422
    assert client.post(f"/api/jobs/{uuid}/pause").json()["status"] == "pausing"
    paused = ended(client, uuid, status="paused")
    client.__exit__(None, None, None)
    client = serve(reindex=True)
    assert client.get(f"/api/jobs/{uuid}").json()["status"] == "paused"
    resumed = client.post(f"/api/jobs/{uuid}/resume", json={"arguments": ["trainer.total_training_steps=1000000"]})
    assert resumed.status_code == 202, resumed.json()
    wait_until(lambda: client.get(f"/api/jobs/{uuid}").json()["step"] > paused["step"])
    found = client.get(f"/api/jobs/{uuid}").json()
    assert (found["status"], found["attempt"], found["steps"]) == ("running", 2, 10**6)
    assert client.post(f"/api/jobs/{uuid}/stop", json={"now": True}).status_code == 202
    ended(client, uuid, status="stopped")
    assert client.post(f"/api/jobs/{uuid}/stop").status_code == 409


def test_one_key_makes_one_job_also_at_the_same_moment_at_two_servers_and_after_a_restart(root, serve):
    """The servers have one root, and know the jobs of one another."""
    servers, body, made = (serve(), serve()), {"name": "once", "arguments": TINY}, []
    headers = {"Idempotency-Key": "k1"}

    def post(client):
        made.append(client.post("/api/jobs", json=body, headers=headers))

    threads = [threading.Thread(target=post, args=(client,)) for client in servers * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {each.status_code for each in made} == {200, 201}
    [uuid] = {each.json()["uuid"] for each in made}
    lose_database(servers[0])
    again = serve(reindex=True).post("/api/jobs", json=body, headers=headers)
    assert (again.status_code, again.json()["uuid"]) == (200, uuid)
    other = servers[1].post("/api/jobs", json={**body, "name": "twice"}, headers=headers)
    assert (other.status_code, other.json()["problems"][0]["where"]) == (409, "Idempotency-Key")
    write_run(root / "rlrun" / "once")
    jobs, other_jobs = (client.app.state.services.jobs for client in servers)
    jobs.change(jobs.get(uuid), place="rlrun/once")
    other_jobs.scan()
    assert [(job["uuid"], job["step"]) for job in servers[1].get("/api/jobs").json()["items"]] == [(uuid, 3)]


def test_of_two_servers_that_start_a_job_at_the_same_moment_one_does(root, serve, monkeypatch):
    first, begun, codes = serve(), [], []
    uuid = first.post("/api/jobs", json={"arguments": TINY}).json()["uuid"]
    servers = (first, serve())

    def submit(arguments):
        begun.append(arguments)
        time.sleep(0.5)  # so that the other server comes in between, unless it waits
        return SimpleNamespace(folder=Folder(write_run(root / "rlrun" / "one")), process=subprocess.Popen(["true"]))

    def start(client):
        codes.append(client.post(f"/api/jobs/{uuid}/start").status_code)

    monkeypatch.setattr(job, "submit", submit)
    threads = [threading.Thread(target=start, args=(client,)) for client in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (sorted(codes), len(begun)) == ([202, 409], 1)


def test_all_that_is_wrong_is_named_at_once(idle):
    body = {"algorithm": "grpo", "model_path": "tiny", "learning_rat": 1, "batch_size": 0, "num_gpus": "8"}
    found = {each["where"]: each for each in idle.post("/api/jobs", json=body).json()["problems"]}
    assert found.keys() == {"learning_rat", "batch_size", "num_gpus"}
    assert found["learning_rat"]["fix"] == "did you mean learning_rate?"
    assert (found["num_gpus"]["got"], found["num_gpus"]["fix"]) == ("got '8'", "use a whole number")
    body = {"arguments": ["algorithm=grpo", "model=tiny", "data=reverse", "sampler.m=2", "optim.lr=-1"]}
    refused = idle.post("/api/jobs", json=body)
    assert (refused.status_code, refused.headers["content-type"]) == (422, "application/problem+json")
    assert {each["where"] for each in refused.json()["problems"]} >= {"sampler.m", "optim.lr"}
    plan = idle.post(PLAN, json=body)
    assert (plan.status_code, plan.json()["ok"]) == (200, False)
    assert idle.get("/api/jobs").json()["total"] == 0


def drawn_launch(seed):
    """What a person may put into the form, some of it wrong."""
    chance = random.Random(seed)
    arguments = [f"algorithm={chance.choice(['sft', 'grpo', 'dpo', 'ppo', 'rloo'])}", "model=tiny"]
    arguments += chance.choice([["data=reverse"], ["data=none-such"], []])
    values = {"optim.lr": [1e-3, 3e-6, -1.0, "fast"], "sampler.n": [4, 1, 0], "data.train_batch_size": [8, 7, 10**6],
              "seed": [1, 2], "trainer.total_training_steps": [3], "optim.lrr": [1]}  # fmt: skip
    arguments += [f"{name}={chance.choice(values[name])}" for name in chance.sample(list(values), chance.randint(0, 4))]
    words = {"learning_rate": 1e-5, "rollout_n": 3, "num_epochs": 2, "context_length": 64, "kl_coef": 0.01}
    return {"arguments": arguments, **dict(chance.sample(list(words.items()), 1))}


@pytest.mark.parametrize("seed", range(int(os.environ.get("LAUNCHES", "3"))))
def test_the_plan_of_a_drawn_launch_is_what_the_command_line_prints(idle, seed):
    """`make test-plans` draws 100."""
    found = idle.post(PLAN, json=drawn_launch(seed)).json()
    assert isinstance(found.pop("rows"), list)
    words = shlex.split(found.pop("command"))
    assert words[:2] == ["rlrun", "train"]
    done = subprocess.run([sys.executable, "-m", "launcher", "plan", "--json", *words[2:]], capture_output=True)
    printed = json.loads(done.stdout)
    for result in printed["results"] + found["results"]:  # what is free on the disk changes from one to the other
        result["message"] = re.sub(r"[\d.]+ .B free", "free", result["message"])
    assert printed == found


def test_a_plan_shows_its_first_rows_as_tokens(idle, tmp_path):
    """Of an answer the loss is on its tokens and its end; of a pair both sides are shown; a prompt has none."""

    def planned(algorithm, *rows):
        (tmp_path / f"{algorithm}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        words = [f"algorithm={algorithm}", "model=tiny", f"data={tmp_path / algorithm}.jsonl", "data.val_share=0"]
        found = idle.post(PLAN, json={"arguments": [*words, "data.max_response_length=999"]}).json()
        return found["results"], [
            tuple("".join(each["text"] for each in row if each["loss"] == loss) for loss in (False, True))
            for row in found["rows"]
        ]

    long = {"prompt": "ab=", "response": "a" * 900}
    results, rows = planned("sft", *[{"prompt": "ab=", "response": "ba"}] * 2, long, long)
    assert rows[:2] == [("ab=", "ba<eos>")] * 2, results
    assert rows[2:] == [("ab= [... 504 tokens ...] ", "a" * 396 + "<eos>")]
    results, rows = planned("dpo", *[{"prompt": "ab=", "chosen": "ba", "rejected": "b"}] * 8)
    assert rows == 3 * [("ab=", "ba<eos>"), ("ab=", "b<eos>")], results
    results, rows = planned("grpo", *[{"prompt": "ab=", "ground_truth": "ba"}] * 8)
    assert rows == 3 * [("ab=", "")], results
    refused = idle.post(PLAN, json={"arguments": ["algorithm=sft", "model=none-such", "data=reverse"]}).json()
    assert (refused["ok"], refused["rows"]) == (False, [])


ROOTS = ["trainer.run_root=/tmp/elsewhere", "+trainer.run_root=/tmp/elsewhere", "trainer={run_root:/tmp/elsewhere}"]


@pytest.mark.parametrize("word", ["--resume=x", "-d", *ROOTS, "${oc.env:HOME}"])
def test_arguments_are_no_options_and_runs_stay_below_the_root(idle, word):
    refused = idle.post("/api/jobs", json={"arguments": [*TINY, word]})
    assert refused.status_code in (403, 422), refused.json()
    if word.startswith("-"):
        [problem] = refused.json()["problems"]
        assert (problem["got"], problem["fix"]) == (f"got '{word}': an option", "use a setting, such as optim.lr=1e-5")


@pytest.mark.parametrize(("word", "status"), [("kill", "failed"), ("stop", "stopped"), ("pause", "paused")])
def test_a_run_that_ends_before_it_begins_says_why_and_failed_only_where_nobody_stopped_it(client, word, status):
    uuid = client.post("/api/jobs", json={"name": "a", "arguments": TINY}).json()["uuid"]
    client.post(f"/api/jobs/{uuid}/start")
    if word == "kill":
        job = client.app.state.services.jobs.get(uuid)
        os.kill(job.record.pid, signal.SIGKILL)
        wait_until(lambda: holder(job.folder) is None)
    else:
        asked = client.post(f"/api/jobs/{uuid}/{word}").json()
        assert asked["status"] in ("stopping", "pausing", status)
    assert ended(client, uuid, status=status)["reason"]


def test_a_run_that_cannot_be_resumed_says_why(root, client):
    folder = write_run(root / "rlrun" / "a", how="stopped")
    (folder / "detached.log").write_text("✗ of an earlier time\nnext: rlrun chat\n")
    uuid, jobs = only_job(client)["uuid"], client.app.state.services.jobs
    client.patch(f"/api/jobs/{uuid}", json={"notes": "mine"})
    problems = "--from: rlrun/a has no checkpoint of step 9; it has none", "optim.lr: got -1"
    with (folder / "detached.log").open("a") as file:
        file.writelines(f"✗ {problem}\n" for problem in problems)
    jobs.change(jobs.get(uuid), request="resume", requested_at=3000.0, pid=None)
    found = client.get(f"/api/jobs/{uuid}").json()
    assert (found["status"], found["reason"]) == ("stopped", "\n".join(problems))


def test_a_name_that_is_taken_gets_a_number_which_the_plan_shows(client):
    asked = {"json": {"name": "My run/../x", "arguments": TINY}}
    plans, runs = zip(*[[client.post(path, **asked).json() for path in (PLAN, "/api/jobs")] for _ in "ab"], strict=True)
    records = [client.app.state.services.jobs.get(run["uuid"]).record for run in runs]
    names = [word.partition("=")[2] for record in records for word in record.arguments if "experiment_name" in word]
    assert names == [plan["folder"].rpartition("/")[2] for plan in plans] == ["My-run-..-x", "My-run-..-x-2"]
    assert [shlex.split(plan["command"])[2:] for plan in plans] == [[*record.arguments] for record in records]
    assert {(run["algorithm"], run["model"]) for run in runs} == {("sft", "tiny")}
    assert client.get("/api/jobs", params={"search": "tiny", "algorithm": "SFT"}).json()["total"] == 2


def test_the_schema_has_every_setting_of_a_plan(idle):
    schema = idle.get("/api/schema").json()
    assert {"algorithm", "model", "data", "reward", "hardware"} <= {group["name"] for group in schema["groups"]}
    known = {each["name"]: each for each in schema["settings"]}
    assert known["optim.lr"]["default"] == 1e-6
    assert known["algorithm.kl_loss_coef"]["help"]


def rerun_alike(root, client, uuid):
    """The same rows, by the same seed."""
    made = client.post(f"/api/jobs/{uuid}/rerun", json={"arguments": ["trainer.total_training_steps=2"]})
    assert made.status_code == 202, made.json()
    done = ended(client, made.json()["uuid"])
    assert (done["run"], done["step"], done["steps"]) == ("rlrun/done-rerun-1", 2, 2)

    def steps(run):
        events = events_of(root / "rlrun" / run / "events.jsonl")
        return {event.step: event.metrics.get("train/loss") for event in events if isinstance(event, Step)}

    again = steps("done-rerun-1")
    assert [*again] == [0, 1, 2] and again.items() <= steps("done").items()


@pytest.mark.slow
@pytest.mark.parametrize("reruns", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_trained_run_is_exported_merged_and_run_again(root, trained, client, reruns):
    shutil.copytree(trained[1], root / "rlrun" / "done")
    job = only_job(client)
    uuid = job["uuid"]
    made = client.post(f"/api/jobs/{uuid}/checkpoints/2/export", json={"to": "early"})
    assert made.status_code == 201, made.json()
    assert made.json()["path"] == "exports/early" and made.json()["step"] == 2
    early = load_file(root / "exports" / "early" / "model.safetensors")

    merged = client.post("/api/merge", json={"models": ["early", f"{uuid}@4"], "method": "linear", "to": "both"})
    assert merged.status_code == 201, merged.json()
    both, last = (load_file(root / place / "model.safetensors")
                  for place in ("exports/both", "rlrun/done/checkpoints/step_000004/policy"))  # fmt: skip
    assert both.keys() == early.keys() == last.keys()
    for name, mean in both.items():
        assert torch.allclose(mean, (early[name] + last[name]) / 2, atol=1e-6), name
    assert any(not torch.equal(early[name], last[name]) for name in early)
    assert client.post("/api/merge", json={"models": ["early"], "method": "linear", "to": "both"}).status_code == 409
    if reruns:
        rerun_alike(root, client, uuid)
        return
    made = client.post(f"/api/jobs/{uuid}/rerun", json={"arguments": ["trainer.total_training_steps=2"]})
    assert made.status_code == 202, made.json()
    rerun = f"/api/jobs/{made.json()['uuid']}"
    client.post(f"{rerun}/stop", json={"now": True})
    wait_until(lambda: client.get(rerun).json()["status"] in ("stopped", "failed"))  # by how far it had come
