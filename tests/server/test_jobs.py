"""The registry of jobs: folders come, change and go; the database is only an index of them."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.server.conftest import write_run


def listed(client, **query):
    return client.get("/api/jobs", params=query).json()


def test_runs_of_a_shell_appear_change_and_go(root, client):
    assert listed(client)["items"] == []
    folder = write_run(root / "math" / "one", how="failed")
    found = client.app.state.services.jobs
    found.scan()
    [job] = listed(client)["items"]
    assert (job["run"], job["status"], job["step"], job["origin"]) == ("math/one", "failed", 3, "rlrun")
    assert (job["learning_rate"], job["context_length"], job["rollout_n"]) == (1e-6, 1536, 5)
    write_run(folder, 5)
    assert client.get(f"/api/jobs/{job['uuid']}").json()["step"] == 5
    shutil.rmtree(folder)
    found.scan()
    assert client.get(f"/api/jobs/{job['uuid']}").status_code == 404


def test_a_run_has_the_same_id_after_a_restart_and_in_a_new_database(root, serve):
    write_run(root / "math" / "one")
    [first] = listed(serve())["items"]
    [again] = listed(serve())["items"]
    Path(root / ".rlrun-serve.sqlite").unlink()
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
    assert names(tag="good") == ["run-0"]
    assert client.get("/api/jobs", params={"status": "runing"}).json()["problems"][0]["fix"] == "did you mean running?"
