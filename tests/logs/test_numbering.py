"""One form of a log owns its steps: what else is printed makes none and moves none."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.core.events import Step
from launcher.logs.sources import GrowingLog, open_log

DICTS = [f"{{'loss': 0.{step}, 'grad_norm': 0.5, 'reward': 0.{step}}}\n" for step in range(1, 6)]
VERL = [f"(TaskRunner pid=1) step:{step} - critic/score/mean:0.5 - actor/lr:1e-06\n" for step in range(1, 6)]
LINES = [f"Step {step}0/100 | Loss: 0.5\n" for step in range(1, 6)]
STRAY = {
    "rewards": "reward: 1.0\nreward: 0.0\n",
    "answer": "Step 1: Cost price = 500\nStep 2: Loss = 500 - 450 = 50\nStep 3: Loss: 10%\n",
    "headings": "Step 1:\nStep 2:\nStep 3:\n",
    "settings": "num_generations: 8\nclip_ratio: 0.2\nkl_penalty: 0.05\n\n",
    "config": "Training config: {'learning_rate': 1e-06, 'clip_ratio': 0.2, 'epochs': 3}\n",
    "reward dict": "{'reward': 1.0, 'format': 0.5}\n",
    "env": '{"step": 3, "reward": 1.0}\n',
    "bar": "Scoring: 10%|# | 1/10 [00:01<00:09, 1.0s/it, reward=0.5]\n",
}


def numbered(path: Path) -> list[tuple[int, tuple[str, ...]]]:
    """Steps and the names of their metrics, which a growing log and a whole reading give alike."""
    whole = [event for event in open_log(path).events() if isinstance(event, Step)]
    log, grown, readings = GrowingLog(path, lambda: 0.0), list[Step](), 0
    for events in (log.new(), log.finish()):
        for event in events:
            if log.readings != readings:
                grown, readings = [], log.readings
            grown += [event] if isinstance(event, Step) else []
    assert [(step.step, step.metrics) for step in grown] == [(step.step, step.metrics) for step in whole]
    return [(step.step, tuple(step.metrics)) for step in whole]


@pytest.mark.parametrize("log", [DICTS, VERL], ids=["dicts", "verl"])
@pytest.mark.parametrize("stray", STRAY)
@pytest.mark.parametrize("times", ["before", "once", "often"])
def test_what_is_printed_beside_the_steps_makes_and_moves_none(tmp_path, log, stray, times):
    text = STRAY[stray]
    mixed = {
        "before": text + "".join(log),
        "once": log[0] + text + "".join(log[1:]),
        "often": "".join(text * 8 + line for line in log),
    }[times]
    path, plain = tmp_path / "a.log", tmp_path / "plain.log"
    path.write_text(mixed)
    plain.write_text("".join(log))
    assert numbered(path) == numbered(plain)
    assert [step for step, _ in numbered(path)] == [1, 2, 3, 4, 5]
    assert open_log(path).kind == open_log(plain).kind
    assert [step.step for step in open_log(path).last_steps(2)] == [4, 5]


@pytest.mark.parametrize("stray", ["rewards", "settings", "config"])
def test_the_lines_of_a_trainers_own_loop_are_steps_too(tmp_path, stray):
    path = tmp_path / "a.log"
    path.write_text("".join(STRAY[stray] + line for line in LINES))
    assert numbered(path) == [(step * 10, ("Loss",)) for step in range(1, 6)]


def test_dicts_of_evaluations_between_such_lines_belong_to_them(tmp_path):
    path = tmp_path / "a.log"
    path.write_text("".join(LINES[:4]) + "{'loss': 0.7, 'accuracy': 0.5}\n" + LINES[4] + "{'eval_loss': 0.5}\n")
    assert [step for step, _ in numbered(path)] == [10, 20, 30, 40, 40, 50, 50]


@pytest.mark.parametrize("stray", ["rewards", "reward dict"])
def test_loose_forms_are_steps_where_there_is_nothing_else(tmp_path, stray):
    path = tmp_path / "a.log"
    path.write_text(STRAY[stray])
    assert [step for step, _ in numbered(path)] == list(range(1, STRAY[stray].count("\n") + 1))


END = """***** train metrics *****
  epoch                    =        1.0
  total_flos               =  1234567GF
  train_loss               =        0.1
  train_runtime            = 0:00:03.10
  train_samples_per_second =        3.1
***** eval metrics *****
  eval_loss               =     1.2345
  eval_runtime            = 0:00:20.12
  eval_samples_per_second =       25.1
"""


def test_the_blocks_at_the_end_of_a_script_belong_to_the_last_step(tmp_path):
    path = tmp_path / "a.log"
    path.write_text("".join(DICTS) + "{'train_runtime': 3.1, 'train_loss': 0.1, 'epoch': 1.0}\n" + END)
    found = numbered(path)
    assert {step for step, _ in found[4:]} == {5} and any("eval_loss" in names for _, names in found)


BAR = "\r{}%|# | {}/200 [02:00<38:00, 12.05s/it]"


def with_bars(counts: list[int]) -> str:
    dicts = (f"   {{'loss': 0.{count}{at}5, 'grad_norm': 0.5}}\n" for at, count in enumerate(counts))
    return "".join(BAR.format(1, count) + line for count, line in zip(counts, dicts, strict=True))


@pytest.mark.parametrize(
    ("counts", "wanted"),
    [
        ([10, 20, 30, 40], [10, 20, 30, 40]),
        ([1, 10, 20, 30], [1, 10, 20, 30]),  # logging_first_step
        ([1, 2, 3], [1, 2, 3]),
        ([210, 220, 230], [210, 220, 230]),  # resumed
        ([10, 20, 30, 20, 30, 40], [10, 20, 30, 20, 30, 40]),  # resumed in the same log
        ([1, 1, 3, 4], [1, 2, 3, 4]),  # a bar that is drawn too seldom
    ],
)
def test_the_bar_beside_a_dict_has_its_step_where_it_moves(tmp_path, counts, wanted):
    path = tmp_path / "a.log"
    path.write_text(with_bars(counts))
    assert [step for step, _ in numbered(path)] == wanted
    path.write_text(with_bars(counts).replace("\r", "\n").replace("   {", "\n{"))
    assert [step for step, _ in numbered(path)] == wanted


def test_an_evaluation_has_the_step_of_the_bar(tmp_path):
    path = tmp_path / "a.log"
    path.write_text(with_bars([10, 20]) + BAR.format(1, 25) + "\n{'eval_loss': 0.5}\n" + with_bars([30]))
    assert [step for step, _ in numbered(path)] == [10, 20, 25, 30]


def test_the_title_of_trls_answers_has_the_step_of_the_dict_before_it(tmp_path):
    path = tmp_path / "a.log"
    panel = "╭──────── Step {} ────────╮\n│ Step 1: add. So 4. │\n╰────────╯\n"
    path.write_text("".join(line + panel.format(10 * at) for at, line in enumerate(DICTS, 1)))
    assert [step for step, _ in numbered(path)] == [10, 20, 30, 40, 50]
