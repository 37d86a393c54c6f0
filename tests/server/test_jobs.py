"""The registry of jobs: folders come, change and go; the database is only an index of them."""

from __future__ import annotations

import json
import shutil

import pytest

from launcher.core.problems import Problems
from launcher.server.columns import Columns
from launcher.views.findings import find_problems
from launcher.views.log_state import with_our_names
from launcher.views.read import find
from tests.logs.same_run import FORMS, collapse
from tests.server.conftest import lose_database, only_job, write_run


def listed(client, **query):
    return client.get("/api/jobs", params=query).json()


def test_runs_of_a_shell_appear_change_and_go(root, client):
    assert listed(client)["items"] == []
    folder = write_run(root / "math" / "one", how="failed")
    job = only_job(client)
    of_run = {"run": "math/one", "status": "failed", "step": 3, "origin": "rlrun"}
    assert job.items() >= of_run.items()
    write_run(folder, 5)
    assert client.get(f"/api/jobs/{job['uuid']}").json()["step"] == 5
    shutil.rmtree(folder)
    client.app.state.services.jobs.scan()
    assert client.get(f"/api/jobs/{job['uuid']}").status_code == 404


def test_a_run_is_listed_once_it_was_read(root, client):
    jobs = client.app.state.services.jobs
    with jobs.lock:  # so that the thread that scans cannot read the folder; a scan takes long where there are many
        jobs._adopt(jobs._record_of(write_run(root / "math" / "one")))
        assert listed(client)["items"] == []
    jobs.scan()
    assert [job["run"] for job in listed(client)["items"]] == ["math/one"]


def test_a_model_without_a_path_has_the_name_that_was_typed(root, client):
    folder = write_run(root / "math" / "one")
    (folder / "words.txt").write_text("rlrun train algorithm=grpo model=tiny\n")  # as a run does, before its spec.yaml
    spec = (folder / "spec.yaml").read_text()
    (folder / "spec.yaml").write_text(spec.replace("pretrained.Pretrained, path: Qwen/Qwen3-0.6B", "scratch.Scratch"))
    assert only_job(client)["model"] == "tiny"


def test_a_run_has_the_same_id_after_a_restart_and_in_a_new_database(root, serve):
    write_run(root / "math" / "one")
    [first] = listed(serve())["items"]
    [again] = listed(serve())["items"]
    lose_database(serve())
    [anew] = listed(serve(reindex=True))["items"]
    assert first == again == anew


def test_a_list_is_searched_filtered_sorted_and_paged(root, serve):
    for number in range(5):
        write_run(root / "math" / f"run-{number}", number + 1, how="failed" if number % 2 else "finished")
    client = serve()

    def names(**query):
        return [job["name"] for job in listed(client, **query)["items"]]

    assert names(sort="step") == [f"run-{number}" for number in (4, 3, 2, 1, 0)]
    assert names(sort="run", status="failed") == ["run-1", "run-3"]
    assert names(search="RUN-3") == ["run-3"]
    assert names(sort="run", size=2, page=2) == ["run-2", "run-3"]
    assert listed(client, size=2)["total"] == 5
    uuid = listed(client, search="run-0")["items"][0]["uuid"]
    client.patch(f"/api/jobs/{uuid}", json={"tags": ["good"], "notes": "keep"})
    assert names(search="good") == names(tag="good", algorithm="GRPO") == ["run-0"]
    assert names(tag="goo") == names(algorithm="sft") == []
    assert client.get("/api/jobs", params={"status": "runing"}).json()["problems"][0]["fix"] == "did you mean running?"


def test_logs_of_other_programs_stand_beside_the_runs(root, serve, tmp_path):
    write_run(root / "math" / "one")
    text = str(FORMS["verl"](collapse()))
    half = text.index("\n", len(text) // 2) + 1
    (log := tmp_path / "logs" / "verl.log").parent.mkdir()
    log.write_text(text[:half])
    log.with_name("notes.txt").write_text("no metrics here\n")
    client = serve(also=(log.parent,))
    client.app.state.services.jobs.scan()
    [job] = [each for each in listed(client)["items"] if each["origin"] == "verl"]
    assert listed(client)["total"] == 2 and job["run"] == str(log) and job["status"] == "running"
    assert 0 < job["started_at"] <= log.stat().st_mtime
    at = f"/api/jobs/{job['uuid']}"

    def curve(of):
        return of.get(f"{at}/curves", params={"names": "actor/entropy"}).json()["curves"]["actor/entropy"]

    before, events = curve(client), Columns.of(client.app.state.services.jobs.get(job["uuid"]).folder.events)
    log.write_text(text)
    client.app.state.services.jobs.logs.get(events.end.path.parent).wait_until = 0.0
    client.app.state.services.jobs.scan()
    source = find(str(log), root)
    steps = [event for event in source.steps() if "actor/entropy" in with_our_names(event.metrics)]
    assert before["count"] < len(steps) == curve(client)["count"] and events.read_on().end.inode == events.end.inode
    assert curve(client)["mean"] == [with_our_names(event.metrics)["actor/entropy"] for event in steps]
    assert client.get(at).json()["step"] == steps[-1].step
    found = [(each["step"], each["text"], each["fix"]) for each in client.get(f"{at}/findings").json()]
    assert found == [(each.step, each.text, each.fix) for each in find_problems(source, None).nodes] != []
    assert client.get(f"{at}/logs", params={"offset": 0}).json()["text"] == text[:65_536]

    asked = [client.get(f"{at}/{name}") for name in ("config", "checkpoints", f"config/diff?other={job['uuid']}")]
    asked += [client.post(f"{at}/{name}") for name in ("start", "stop", "pause", "resume", "rerun")]
    asked.append(client.post(f"{at}/checkpoints/1/export"))
    assert {(each.status_code, "is the log" in each.json()["problems"][0]["got"]) for each in asked} == {(409, True)}

    client.patch(at, json={"notes": "seen"})
    again = serve(also=(log,))
    with again.app.state.services.jobs.reads_logs:  # as long as a log is read, nobody waits for it
        assert listed(again)["total"] in (1, 2)
        assert again.get("/api/jobs/none").status_code == 404
    again.app.state.services.jobs.scan()
    assert again.get(at).json()["notes"] == "seen"
    assert serve().get(at).status_code == 404


def test_a_log_without_times_has_no_time_left_also_in_the_folder_of_a_trainer(serve, tmp_path):
    rows = [{"step": step, "loss": 2.0 - step / 10} for step in range(1, 5)]
    (tmp_path / "out").mkdir()
    state = {"global_step": 4, "max_steps": 10, "log_history": rows}
    (tmp_path / "out" / "trainer_state.json").write_text(json.dumps(state))
    job = only_job(serve(also=(tmp_path / "out",)))
    expected = {"step": 4, "steps": 10, "progress": 0.4, "eta_s": None, "seconds_per_step": None}
    assert job.items() >= expected.items()
    with pytest.raises(Problems, match="none"):
        serve(also=(tmp_path / "none.log",))
