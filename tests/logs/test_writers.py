"""Two trainings whose output is one log: one of them is read, and the other is named."""

from __future__ import annotations

import pytest

from launcher.core.events import Alert, Step
from launcher.logs.parser import LogParser
from launcher.logs.sources import GrowingLog, open_log

ONE, TWO = "(TaskRunnerV1 pid=1)", "(TaskRunnerV1 pid=2)"
COLOURED = [f"\x1b[36m{each}\x1b[0m" for each in (ONE, TWO)]
STAMPED = [f"2024-05-01T10:00:00.{each}Z {process}" for each, process in ((1, ONE), (23, TWO))]


def read(text: str) -> tuple[list[int], list[str]]:
    parser = LogParser()
    events = [*parser.feed(text.encode()), *parser.finish()]
    return [e.step for e in events if isinstance(e, Step)], [e.text for e in events if isinstance(e, Alert)]


def line(process: str, step: int, value: str = "0.5") -> str:
    return f"{process} step:{step} - critic/score/mean:{value} - actor/pg_loss:0.1\n"


def interleaved(one: str, two: str, value: str = "0.5", steps: int = 6) -> str:
    return "".join(line(one, step, value) + line(two, step + 100, value) for step in range(steps))


@pytest.mark.parametrize("value", ["0.5", "nan"])
@pytest.mark.parametrize(("one", "two"), [(ONE, TWO), COLOURED, STAMPED])
def test_of_two_jobs_in_one_log_the_first_is_read_and_the_other_is_named(tmp_path, one, two, value):
    log = tmp_path / "a.log"
    log.write_text(interleaved(one, two, value))
    events = list(open_log(log).events())
    assert [event.step for event in events if isinstance(event, Step)] == [0, 1, 2, 3, 4, 5]
    (notice,) = [event for event in events if isinstance(event, Alert)]
    assert f"only the steps of {ONE} are read, those of {TWO} are left out" in notice.text
    assert notice.fix.startswith(f"grep -F '{TWO}' LOG | rlrun metrics -") and notice.level == "warn"
    assert [step.step for step in open_log(log).last_steps(2)] == [4, 5]


def test_a_log_that_is_watched_is_read_anew_when_the_second_job_shows(tmp_path):
    path = tmp_path / "a.log"
    path.write_text(line(ONE, 1) + line(TWO, 11))
    log = GrowingLog(path, lambda: 0.0)
    assert [event.step for event in log.new() if isinstance(event, Step)] == [1, 11]
    with path.open("a") as file:
        file.write(line(ONE, 2) + line(TWO, 12) + line(ONE, 3))
    assert [event.step for event in log.new() if isinstance(event, Step)][-3:] == [1, 2, 3] and log.readings == 1


def test_of_three_jobs_one_is_read():
    text = "".join(line(f"(TaskRunner pid={1 + step % 3})", step) for step in range(15))
    steps, notices = read(text)
    assert steps[-3:] == [6, 9, 12] and len(notices) == 2


def test_a_job_that_is_started_again_goes_on_in_a_new_process():
    text = "".join(line(ONE, step) for step in (1, 2, 3)) + "".join(line(TWO, step) for step in (3, 4, 5))
    assert read(text) == ([1, 2, 3, 3, 4, 5], [])


def test_processes_of_one_training_with_metrics_of_their_own_are_all_read():
    text = "".join(
        f"(Actor pid=1) step:{step} - actor/loss:0.5\n(Critic pid=2) step:{step} - critic/vf_loss:0.1\n"
        for step in range(4)
    )
    assert read(text) == ([0, 0, 1, 1, 2, 2, 3, 3], [])


def test_dicts_of_two_jobs_are_not_counted_as_one_and_equal_ones_are_of_ranks():
    two = "".join(f"(T pid={1 + at % 2}) {{'loss': {at}.5, 'grad_norm': {at}.1}}\n" for at in range(8))
    assert read(two)[1] and read(two)[0][-1] == 6
    ranks = "".join(f"(T pid={1 + at % 2}) {{'loss': {at // 2}.5, 'grad_norm': {at // 2}.1}}\n" for at in range(8))
    assert read(ranks) == ([1, 1, 2, 2, 3, 3, 4, 4], [])


def test_what_the_other_job_died_of_is_no_end_of_the_one_that_is_read():
    died = f"{TWO} Traceback (most recent call last):\n{TWO} ValueError: a bad row\n"
    notices = read(interleaved(ONE, TWO) + died)[1]
    assert len(notices) == 1 and "ValueError" not in notices[0]


@pytest.mark.parametrize("late", [3, 4])
def test_a_late_line_of_a_dead_process_loses_no_step_of_its_successor(late):
    written = [(ONE, 1), (ONE, 2), (ONE, 3), (TWO, 4), (ONE, late), (TWO, 5), (TWO, 6)]
    assert read("".join(line(*each) for each in written)) == ([1, 2, 3, 4, late, 5, 6], [])


def test_of_ranks_that_print_their_own_loss_one_is_read(tmp_path):
    text = "".join(
        f"(RayTrainWorker pid={pid}) {{'loss': 0.{pid}{at}, 'grad_norm': 1.{pid}, 'epoch': 0.{at}}}\n"
        for at in range(1, 5)
        for pid in ((1, 2) if at % 2 else (2, 1))
    )
    (log := tmp_path / "a.log").write_text(text)
    assert [step.step for step in open_log(log).last_steps(9)] == [1, 2, 3, 4]
