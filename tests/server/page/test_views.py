"""Every view opens in a browser, in both themes and on a phone, and can be used by everybody."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.core.events import TrainingGroup
from tests.server.conftest import write_run
from tests.server.page.conftest import AXE, Served

pytest.importorskip("playwright.sync_api")

VIEWS = (
    "/", "/runs?search=small&sort=run", "/compare?jobs={long},{other}", "/launch",
    "/launch?from={small}&set=sampler.n%3D16",
    "/run/{small}", "/run/{long}", "/run/{small}/step/3", "/run/{small}/step/0", "/run/{small}/answers",
    "/run/{small}/group/3/1", "/run/{small}/answer/3/1/0", "/run/{small}/prompts", "/run/{small}/machines",
    "/run/{long}/machines", "/run/{small}/checkpoints", "/run/{small}/logs", "/run/{small}/settings?other={long}",
    "/run/{verl}", "/run/{verl}/logs", "/run/{trl}", "/run/{agent}/group/3/1",
)  # fmt: skip
LOOKS = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "phone": {"color_scheme": "light", "viewport": {"width": 390, "height": 844}, "device_scale_factor": 2},
}


@pytest.fixture(scope="module")
def uuids(server: Served) -> dict[str, str]:
    return {
        "small": server.uuid("rlrun/small"),
        "long": server.uuid("long/seed-0"),
        "other": server.uuid("long/seed-1"),
        "verl": server.uuid("verl.log"),
        "trl": server.uuid("trl.log"),
        "agent": server.uuid("mail/agent"),
    }


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("view", VIEWS)
def test_a_view(visit, uuids, view, look):
    page = visit(view.format(**uuids), **LOOKS[look])
    page.locator("h1").first.wait_for()
    page.locator(".loading:not(.judging)").first.wait_for(state="detached")
    if "launch" in view:
        page.get_by_text("can start").first.wait_for()
    page.wait_for_timeout(300)
    assert page.locator("main .trouble").count() == 0, page.locator("main .trouble").all_inner_texts()
    width = page.evaluate("innerWidth")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    if AXE.is_file():
        page.evaluate(Path(AXE).read_text())
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
        serious = [
            (each["id"], each["nodes"][0]["html"][:200]) for each in found if each["impact"] in ("serious", "critical")
        ]
        assert not serious


def test_texts_of_a_run_are_never_markup(visit, uuids):
    page = visit(f"/run/{uuids['other']}")
    page.locator("h1").first.wait_for()
    sent = "{method: 'PATCH', headers: {'content-type': 'application/json'}, body: JSON.stringify({name: '<b>it</b>'})}"
    page.evaluate(f"fetch('/api/jobs/{uuids['other']}', {sent})")
    page.reload()
    page.get_by_text("<b>it</b>").first.wait_for()
    assert page.locator("main b", has_text="it").count() == 0


def test_keys_lead_to_rows_and_views(visit):
    page = visit("/runs")
    page.locator("[data-row]").first.wait_for()
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.type") == "search"
    page.keyboard.press("Escape")
    for key in "jjk":
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement.closest('tr').rowIndex") == 1
    page.keyboard.press("Enter")
    page.wait_for_url("**/run/*")
    page.keyboard.press("g")
    page.keyboard.press("r")
    page.wait_for_url("**/runs")
    page.keyboard.press("?")
    page.get_by_role("dialog", name="Keys").wait_for()


def test_marked_runs_are_compared(visit):
    page = visit("/runs?search=seed")
    page.get_by_role("checkbox").nth(1).wait_for()
    for box in page.get_by_role("checkbox").all():
        box.check()
    page.get_by_role("link", name="Compare 2").click()
    page.wait_for_url("**/compare?jobs=*")
    page.get_by_role("heading", name="Settings that differ").wait_for()
    page.locator(".chart canvas").first.wait_for()
    assert page.get_by_text("trainer.experiment_name").count() > 0 or page.get_by_text("seed").count() > 0


def test_tokens_are_shown_with_what_is_masked(visit, uuids):
    page = visit(f"/run/{uuids['small']}/answer/3/1/0?by=ratio")
    page.locator(".tokens .token").first.wait_for()
    assert page.locator(".tokens .token").all_inner_texts() == ["one", "<i>", "pad"]
    assert page.locator(".tokens .masked").all_inner_texts() == ["pad"]
    page.locator(".tokens .token").nth(2).click()
    assert page.locator(".figures").inner_text().count("masked") == 2


def test_an_episode_is_shown_turn_by_turn(visit, uuids):
    page = visit(f"/run/{uuids['agent']}/group/3/1")
    episode = page.locator("article.answer").first
    turns = episode.locator("details.turn")
    turns.first.wait_for()
    assert turns.count() == 50
    head = " ".join(turns.first.locator("summary").first.inner_text().split())
    assert head == "turn 1 reward 0.1 advantage +0.75 search 0.25 s read 1.5 s I look for it"
    assert episode.locator(".outcome").inner_text() == "50 turns, ended: turn-limit"
    assert page.locator(".outcome").nth(1).inner_text() == "1 turn, ended: environment-fault the index is gone"
    # of many turns the last is open; what a tool printed is as long as it needs to be
    assert [turns.nth(n).get_attribute("open") is not None for n in (0, 48, 49)] == [False, False, True]
    assert page.locator("article.answer").first.bounding_box()["height"] < 2_500
    turns.first.locator("summary").first.click()
    turns.first.get_by_text("no such mail").wait_for()
    assert "<b>from</b>" in turns.first.locator(".observation pre").first.inner_text()
    assert not turns.first.get_by_text("mail 399: <b>from</b> Ann").is_visible()
    turns.first.get_by_text("more characters").click()
    turns.first.get_by_text("mail 399: <b>from</b> Ann").wait_for()


def test_answers_of_one_turn_are_texts(visit, uuids):
    page = visit(f"/run/{uuids['small']}/group/3/1")
    page.locator("article.answer > pre").first.wait_for()
    assert page.locator(".episode, .answers.two").count() == 0
    for path in ("answers", "prompts"):  # held-out answers, and the same prompt at two steps
        page = visit(f"/run/{uuids['agent']}/{path}")
        if path == "answers":
            page.get_by_label("held-out").check()
            page.get_by_text("50 turns, ended: turn-limit").click()
        else:
            page.get_by_label("step").nth(1).wait_for()
        page.get_by_text("turn 50").first.wait_for()


def test_a_step_shows_all_its_groups_and_steps_can_be_chosen_that_share_no_prompt(visit, server):
    groups = tuple(
        TrainingGroup(at=1.0, step=step, group=group, data_source="d", prompt=f"{step}, {group}", ground_truth="",
                      responses=("a",), scores=(1.0,), parts={}, advantages=(0.0,))
        for step in (1, 2) for group in range(60)
    )  # fmt: skip
    write_run(server.place / "runs" / "mail" / "many", more=groups)
    uuid = server.uuid("mail/many")
    page = visit(f"/run/{uuid}/step/2")
    page.locator("#groups .count").wait_for()
    assert page.locator("#groups .count").inner_text() == "60" and page.get_by_text("2, 59").count() == 1
    page = visit(f"/run/{uuid}/prompts")
    page.get_by_text("These steps have no prompt in common.").wait_for()
    page.get_by_label("step").first.select_option("2")
    page.wait_for_url("**steps=2*2")
    page.get_by_text("2, 0").first.wait_for()


def test_the_plan_shows_the_first_rows_as_tokens(visit):
    page = visit("/launch")
    page.get_by_text("what is answered to these prompts will have one").wait_for(timeout=60_000)
    assert page.locator(".plan .tokens").count() == 3 and page.locator(".plan .tokens .learned").count() == 0
    page.locator("#field-algorithm").select_option("sft")
    page.locator(".plan .tokens .learned").first.wait_for(timeout=60_000)
    assert page.locator(".plan .tokens .masked").count() > 0
