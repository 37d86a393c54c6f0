"""A person who starts, watches, stops and resumes a run in the browser alone."""

from __future__ import annotations

import pytest

from tests.server.page.conftest import Served, until

pytest.importorskip("playwright.sync_api")


def field(page, name):
    return page.locator(f"[id='field-{name}']")


def test_a_person_launches_mends_watches_stops_and_resumes(visit, server: Served):
    page = visit("/")
    page.set_default_timeout(120_000)
    page.get_by_role("link", name="Launch a run").click()
    page.get_by_text("can start", exact=True).wait_for()

    # three mistakes: each is named at its place, two have a button that fixes them
    field(page, "trainer.experiment_name").fill("by-hand")
    field(page, "trainer.total_training_steps").fill("400")
    field(page, "sampler.n").fill("1")
    field(page, "optim.lr").fill("fast")
    page.locator("#free").fill("trainer.tset_freq=5")
    page.get_by_text("cannot start: 3 problems").wait_for()
    assert page.get_by_role("button", name="Start").is_disabled()
    assert field(page, "optim.lr").get_attribute("aria-invalid") == "true"
    page.locator("form").get_by_role("button", name="Use trainer.test_freq=5").click()
    page.locator("form").get_by_role("button", name="Use sampler.n=8").click()
    field(page, "optim.lr").fill("1e-3")
    page.get_by_text("can start", exact=True).wait_for()
    command = page.locator(".copy code").inner_text()
    assert command.startswith("rlrun train algorithm=grpo model=tiny data=reverse") and "trainer.test_freq=5" in command

    # it starts, and its curves grow by themselves
    page.get_by_role("button", name="Start").click()
    page.wait_for_url("**/run/*")
    page.locator(".chart canvas").first.wait_for()
    steps = page.locator(".facts .progress .num")
    seen = steps.inner_text()
    until(lambda: steps.inner_text() != seen)
    assert page.locator(".connection.live").count() == 1

    # the finding leads to the answers of its step
    page.locator(".finding").first.wait_for()
    with page.expect_navigation(url="**/step/*"):
        page.locator(".finding").first.get_by_role("link", name="answers").click()
    page.get_by_role("heading", name="Groups").wait_for()
    page.get_by_role("link", name="Answers").click()
    page.locator("tbody tr a").first.click()
    page.locator("article.answer").first.wait_for()

    # stop, then go on with what helps
    page.get_by_role("button", name="Stop").click()
    page.locator(".status.stopped").wait_for()
    uuid = page.url.split("/run/")[1].split("/")[0]
    page.get_by_role("link", name="Overview").click()
    page.locator(".finding").first.get_by_role("link", name="Use ").first.click()
    page.get_by_role("button", name="Resume").wait_for()
    field(page, "sampler.n").fill("")
    reached = server.ask(f"/api/jobs/{uuid}")["step"]  # before it stopped, a fast machine came further than a slow one
    field(page, "trainer.total_training_steps").fill(str(reached + 6))
    page.get_by_role("button", name="Resume").click()
    page.wait_for_url(f"**/run/{uuid}")
    until(lambda: server.ask(f"/api/jobs/{uuid}")["attempt"] == 2)
    until(lambda: server.ask(f"/api/jobs/{uuid}")["status"] not in ("waiting", "running"))
