"""`rlrun report` of a real run, and of what runs leave behind: nothing, half of it, damage, hostile text."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from launcher.core.events import Alert, Crashed, Ended, Event, Resumed, Step, Usage, to_line
from launcher.reports.answers import drawn, error_groups, mean_score
from launcher.reports.measures import efficiency, reward_parts, stability
from launcher.reports.report import make_report, write_report
from launcher.views.record import RunRecord, read_record
from tests.reports.made import MEAN, answers, begin, pair_steps, validated

HOSTILE = (
    "</pre></details><script>alert(1)</script><img src=x onerror=alert(2)> \x1b[31m\u202e``` | [a](javascript:b) \ud800"
)


class Tags(HTMLParser):
    """All tags and attributes of a page; fails where an element is not closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "link", "br", "line", "circle", "path") or (
            tag == "circle" and not self.get_starttag_text().endswith("/>")
        ):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture
def page_of(record: Callable[..., RunRecord], tmp_path: Path) -> Callable[..., str]:
    """The page of a run."""

    def write(*run: Any, goal: float | None = None, **more: Any) -> str:
        report = make_report(run[0] if isinstance(run[0], RunRecord) else record(*run, **more), goal)
        write_report(report, tmp_path / "out.html")
        return (tmp_path / "out.html").read_text()

    return write


def step(number: int, **metrics: float) -> Step:
    return Step(at=100.0 + number, step=number, metrics={f"actor/{name}": value for name, value in metrics.items()})


# ---- a real run


@pytest.mark.slow
def test_a_real_run(trained: Any, look: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained.folder)
    ran = look("report", "one", "--goal", "0.9")
    assert ran.exit_code == 0, ran.stderr
    assert "Goal held-out score >= 0.9: not reached" in ran.stdout and "checklist: " in ran.stdout
    folder = trained.run("one")
    page = (folder / "report.html").read_text()
    assert Tags(page).tags.count("svg") >= 8
    assert not re.search(r"(?:src|href)=\"(?!data:)|@import|url\(|<script", page), "it asks for nothing"
    headings = "Checklist|Health findings|Curves|Stability|Efficiency|Reward parts|Samples"
    for heading in headings.split("|"):
        assert f">{heading}</h2>" in page
    assert "critic/score/exact/mean" in page and "train/core/reward/rule_based" in page  # S2-34
    assert "of 8 answers that were logged at step 12" in page
    assert look("report", "one", "--goal", "0.9").exit_code == 0 and (folder / "report.html").read_text() == page
    assert look("show", "one").exit_code == 0  # the folder is still a run


def test_what_cannot_be_done_is_a_problem(make_run: Any, look: Any, tmp_path: Path) -> None:
    make_run([step(1, entropy=1.0)])
    for words, problem in (
        (["nowhere"], "no run of that name"),
        (["one", "--goal", "much"], "Invalid value for '--goal': Input should be a valid number"),
        (["one", "--out", "page.pdf"], "use a name that ends with .html"),
        (["one", "--out", str(tmp_path / "no" / "page.html")], "is not a folder"),
        (["one", "--out", "/proc/page.html"], "use a place that can be written"),
    ):
        ran = look("report", *words)
        assert ran.exit_code == 2 and problem in ran.stderr, ran.stderr
    assert sorted(file.name for file in tmp_path.iterdir()) == ["runs"]


# ---- what a folder may be


LACKS: dict[str, tuple[bool, str | None, str]] = {
    "nothing": (False, "{}", "events.jsonl: there is none"),
    "an empty log": (False, "{}", "No step was finished."),
    "only events": (True, None, "cannot be read"),
    "a list": (True, "- 1", "spec.yaml: holds no settings"),
    "not YAML": (True, "a: [", "cannot be read"),
}
"""What is left of a folder: whether it has events, its settings, and what is said of it."""


@pytest.mark.parametrize("left", LACKS)
def test_a_folder_that_lacks_something(make_run: Any, page_of: Any, left: str) -> None:
    has_events, spec, named = LACKS[left]
    folder = make_run([*begin(), validated(4, 3, 10)] if has_events else [], spec=spec)
    if left == "nothing":
        folder.events.unlink()
    text = page_of(read_record(folder), goal=0.5)
    Tags(text)
    assert named in text and ("not reached" if has_events else "not measured") in text


def test_damaged_and_half_written_lines_are_left_out(make_run: Any, page_of: Any) -> None:
    folder = make_run([*begin(), validated(4, 8, 10)])
    half = to_line(step(5, entropy=0.5)).encode()[:40]
    with folder.events.open("ab") as log:
        log.write(b'{"kind":"Step","at":1,"step":"x"}\n\xff\xfe\x00\n[]\n' + half)
    found = read_record(folder)
    assert found.damaged == 3 and found.final and found.final.value == 0.8
    text = page_of(found)
    assert "events.jsonl: 3 damaged lines were left out" in text
    assert "byte" not in text.partition("Health findings")[2][:300]


def test_a_failed_run_says_why(page_of: Any) -> None:
    events = [*begin(), step(1, pg_loss=0.1), Crashed(at=200.0, lines=("CUDA out of memory",), cause="error"),
              Ended(at=201.0, how="failed", why="rank 0: CUDA out of memory")]  # fmt: skip
    text = page_of(events)
    assert "the run failed: rank 0: CUDA out of memory" in text and "GRPO, failed at step 1 of 100" in text


# ---- hostile text, secrets, size


def test_hostile_text_stays_text(page_of: Any) -> None:
    texts = {"data_source": HOSTILE, "prompt": HOSTILE, "response": f"# {HOSTILE}", "ground_truth": HOSTILE}
    alert = Alert(at=9.0, step=4, text=HOSTILE, rule=HOSTILE, metric=HOSTILE, cause=HOSTILE, fix=HOSTILE)
    names = {f"critic/score/{HOSTILE}/mean": 1.0, f"val-core/{HOSTILE}/reward/mean@1": 1.0}
    events: list[Event] = [
        *begin(), *answers(4, [0.0, 1.0, math.nan], **texts), alert, validated(4, 1, 3, **names),
        Ended(at=300.0, how="finished", why=HOSTILE),
    ]  # fmt: skip
    spec = f"a: {json.dumps(HOSTILE.replace(chr(0xD800), ''))}\nreward: {{_target_: os.system}}\n"
    found = Tags(text := page_of(events, spec=spec))
    assert {"script", "img", "iframe", "a", "object"}.isdisjoint(found.tags)
    assert not [
        name for name, value in found.attributes if name.startswith("on") or (value or "").startswith("javascript")
    ]
    assert "\x1b" not in text and "\u202e" not in text


def test_secrets_are_hidden(page_of: Any) -> None:
    token = "hf_" + "abcDEF0123456789" * 2
    spec = f"reward: {{api_key: plain-words-here, url: 'https://u:pw123456@host/x'}}\nnote: {token}\n"
    text = page_of([*begin(), *answers(4, [0.0], response=token)], spec=spec)
    assert token not in text and "plain-words" not in text and "pw123456" not in text and "secret" in text


# ---- figures of the guide


def test_stability_has_the_numbers_and_what_the_health_rules_found(record: Any) -> None:
    """A number is judged by the rules of the run's profile alone."""
    steps = [step(n, entropy=2.0 - n / 10, pg_loss=9.0) for n in range(1, 17)]
    alerts = [Alert(at=9.0, step=9, text="x", level=level, rule=f"entropy-{level}", metric="actor/entropy")
              for level in ("info", "critical", "warn")]  # fmt: skip
    (_, metric, _, *nothing), (*_, trace, level, rules) = stability(record([*steps, *alerts]))
    assert (metric, nothing) == ("actor/pg_loss", ["", ""])
    assert (trace.mean, trace.last) == (pytest.approx(1.15), pytest.approx(0.4))
    assert (trace.low, trace.high) == (pytest.approx(0.4), pytest.approx(1.9))
    assert (level, rules) == ("critical", "entropy-info, entropy-critical, entropy-warn")


def usage(at: float, **more: Any) -> Usage:
    gib = 2**30
    return Usage(
        at=at, rank=0, host="a", cpu_percent=50.0, memory_bytes=4 * gib, machine_cpu_percent=20.0,
        machine_memory_bytes=8 * gib, machine_memory_total_bytes=16 * gib, disk_free_bytes=None, **more,
    )  # fmt: skip


@pytest.mark.parametrize(("used", "busy", "memory", "use"), [
    (20, 75.0, "pass", "pass"), (22, 50.0, "pass", "pass"), (23, 29.0, "fail", "fail"), (24, 31.0, "fail", "pass"),
])  # fmt: skip
def test_the_cards_memory_and_its_use(record: Any, used: int, busy: float, memory: str, use: str) -> None:
    """S2-33: 20 of 24 GB are good, 23 are too many; above 70 % it is full, below 30 % a larger batch helps."""
    gib = 2**30
    events = [usage(1.0, gpu_percent=busy, gpu_memory_bytes=used * gib, gpu_memory_total_bytes=24 * gib),
              usage(2.0, gpu_percent=busy, gpu_memory_bytes=gib, gpu_memory_total_bytes=24 * gib)]  # fmt: skip
    rows = {row.name: row for row in efficiency(record(events))}
    assert (rows["GPU memory"].status, rows["GPU use"].status) == (memory, use)
    assert f"peak {used} of 24 GiB" in rows["GPU memory"].figure and f"mean {busy:.0f} %" in rows["GPU use"].figure
    assert ("micro_batch_size" in rows["GPU memory"].note) == (memory == "fail")
    assert ("mixed_precision" in rows["GPU use"].note) == (use == "fail")


def timed(number: int, at: float, seconds: float, tokens: float = 100.0) -> Step:
    return Step(at=at, step=number, metrics={"timing_s/step": seconds, "perf/total_num_tokens": tokens})


@pytest.mark.parametrize(("longest", "status"), [(50.0, "pass"), (150.0, "pass"), (200.0, "fail")])
def test_the_swing_of_the_steps(record: Any, longest: float, status: str) -> None:
    """S2-15: 50 s and then 200 s is too much; the first step, which warms up, is left out."""
    times = [400.0, *[50.0] * 8, longest]
    events = [*begin(), *(timed(n, 10.0 + n, seconds) for n, seconds in enumerate(times, start=1))]
    rows = {row.name: row for row in efficiency(record(events))}
    assert rows["seconds per step"].status == status
    assert rows["tokens per second"].figure == f"{1000 / math.fsum(times):,.0f}"


def test_a_pause_is_no_step_and_not_part_of_the_duration(record: Any) -> None:
    """Steps without a clock of their own last until the next; the days until a person resumes are no step."""
    steps = [Step(at=10.0 + 10 * n, step=n, metrics={}) for n in range(1, 6)]
    events = [*begin(), *steps, Resumed(at=5000.0, step=5, attempt=2), Step(at=5030.0, step=6, metrics={})]
    report = make_report(record(events))
    assert list(report.record.step_times) == [18.0, 10.0, 10.0, 10.0, 10.0]
    assert report.record.state.elapsed_s == 89.0


# ---- answers


def test_low_answers_are_grouped_by_source_and_kind(record: Any) -> None:
    """S2-36: below 0.5, by what their texts show; 12 and 1.5 are not the expected 1."""
    of = answers
    events = [*begin(), *of(9, [0.0] * 3, response="it is #### 12"), *of(9, [0.2], response="it is eggs"),
              *of(9, [0.0] * 2, response=" \n"), *of(9, [0.1], response="so $1$."), *of(9, [math.nan], response="x"),
              *of(9, [0.0], response="#### 8", data_source="other"), *of(9, [0.5, 1.0])]  # fmt: skip
    groups = error_groups(record(events).samples)
    assert [(*group, len(answers)) for group, answers in groups.items()] == [
        ("gsm8k", "wrong answer", 4), ("gsm8k", "empty", 2), ("gsm8k", "holds the expected answer", 1),
        ("gsm8k", "no score", 1), ("other", "wrong answer", 1),
    ]  # fmt: skip
    means = [mean_score(answers) for answers in groups.values()]
    assert math.isnan(means[3]) and means[0] == pytest.approx(0.05)


def test_samples_are_drawn_with_a_fixed_seed(record: Any, page_of: Any) -> None:
    """S2-31: 20 of them, those of the last validation."""
    run = record([*begin(), *answers(1, [0.0] * 90), *answers(2, [1.0] * 90)])
    samples = drawn(run.samples)
    assert len(samples) == 20 and {sample.step for sample in samples} == {2}
    assert samples == drawn(answers(2, [1.0] * 90)) != answers(2, [1.0] * 20)
    assert "20 of 90 answers that were logged at step 2, drawn with a fixed seed" in page_of(run)
    assert drawn([]) == []


def test_parts_of_the_reward(record: Any) -> None:
    """S2-34: which of rules and models contributes more."""
    events = [Step(at=1.0, step=n, metrics={"train/core/reward/rule_based": n / 10, "train/core/reward/rm_based": 0.1,
              "critic/score/mean": 1.0, "critic/score/exact/mean": 0.5}) for n in range(1, 9)]  # fmt: skip
    rows = reward_parts(record(events))
    assert [(name, trace.mean) for name, _, trace in rows] == [
        ("by rules", pytest.approx(0.45)), ("by models", pytest.approx(0.1)), ("exact", 0.5),
    ]  # fmt: skip


# ---- the checklist


def listed(run: RunRecord, goal: float | None = None) -> dict[str, str]:
    return {row.name: row.status for row in make_report(run, goal).checklist}


def test_a_healthy_run_passes_the_checklist(record: Any) -> None:
    """S2-37: score, loss, entropy and time every 10 steps, validation, and the end."""
    events = [*begin(steps=40)]
    for n in range(41):
        metrics = {"critic/score/mean": -0.1 + n * 0.02, "actor/pg_loss": -0.01, "actor/entropy": 1.2 - n * 0.02,
                   "actor/kl_loss": 0.01, "actor/grad_norm": 0.5, "timing_s/step": 50.0}  # fmt: skip
        events.append(validated(n, 100 + 15 * n, 1000, **metrics))
    events += [*answers(40, [1.0] * 9 + [0.0]), Ended(at=200.0, how="finished")]
    found = listed(record(events), 0.55)
    assert set(found.values()) == {"pass", "no bound"} and found["it learned"] == "pass"


def test_a_bad_run_fails_the_checklist(record: Any) -> None:
    """S2-28 (0.5 in training, 0.3 held out), S2-09 (1.0 to 0.1), S2-15, S2-21."""
    events = [*begin(steps=100)]
    for n in range(1, 31):
        metrics = {"critic/score/mean": 0.6 - n / 300, "actor/pg_loss": 0.2, "actor/kl_loss": 0.5,
                   "actor/grad_norm": 4.0, "actor/entropy": 1.0 if n < 20 else 0.05,
                   "timing_s/step": 50.0 if n < 29 else 200.0}  # fmt: skip
        events.append(validated(n, 200 + 3 * n, 1000, **metrics))
    alert = Alert(at=150.0, step=20, text="entropy fell", level="critical", rule="entropy-low")
    events += [alert, *answers(30, [1.0] * 2 + [0.0] * 8), Ended(at=200.0, how="failed")]
    found = listed(record(events), 0.55)
    assert [name for name, status in found.items() if status == "fail"] == [
        "held-out score meets the goal", "health rules find nothing critical", "efficiency",
    ]  # fmt: skip
    assert found["it learned"] == "pass", "its held-out score rose from 0.2 to 0.29"


def test_nothing_is_passed_that_was_not_measured(record: Any) -> None:
    found = listed(record(begin()))
    assert set(found.values()) == {"not measured", "fail"} and found["efficiency"] == "fail"  # no step was done


# ---- what is judged is what was measured, and figures of one table agree


@pytest.mark.parametrize(("held_out", "status"), [
    (MEAN, "not measured"),  # of answers: another measure than pairs
    ("val/rewards/accuracies", "no bound"),  # the same of held-out pairs
])  # fmt: skip
def test_an_accuracy_on_pairs_is_not_compared_with_a_score_of_answers(record: Any, held_out: str, status: str) -> None:
    rows = listed(record([*begin(), *pair_steps(held_out)]))
    assert rows["training score above the held-out one"] == status


@pytest.mark.parametrize(("first", "shown"), [(5, False), (6, True), (4, False)])
def test_a_best_validation_is_named_where_it_is_better_than_the_last(page_of: Any, first: int, shown: bool) -> None:
    assert ("best, at step 1" in page_of([*begin(), validated(1, first, 10), validated(2, 5, 10)])) is shown


@pytest.mark.parametrize(("scores", "status"), [([0.0] * 4, "not measured"), ([0.0] * 10, "no bound")])
def test_a_few_logged_answers_do_not_judge_a_run(record: Any, scores: list[float], status: str) -> None:
    """`trainer.log_val_generations` is 4 by default."""
    report = make_report(record([*begin(rows=256), *answers(1, scores), validated(1, 100, 256)]), 0.9)
    (row,) = (row for row in report.checklist if row.name.startswith("held-out answers"))
    assert row.status == status and f"of {len(scores)} logged answers" in row.figure
