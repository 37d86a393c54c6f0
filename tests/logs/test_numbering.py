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
    "episode dict": "Episode 7 done: {'reward': 1.0, 'turns': 3}\nEval episode 3: {'reward': 0.9}\n",
    "episode": "Episode 3: reward: 0.5, turns: 3\n[Eval] episode 3: reward: 0.9\n",
    "episode headings": "=== Episode 8 ===\nuser: hello\nEpisode 16\n",
    "pair": "[3, 4] reward: 0.5\n",
    "table": "| component | weight | reward |\n|---|---|---|\n| format | 0.2 | 1 |\n| exact | 1 | 1 |\n",
    "list": "name, loss, reward\na, 1, 2\n",
    "parallel": "Parallel: TP=2 PP=1 EP=8 loss: 1\nep 1 | batch 100/300 | loss: 1.8\n",
    "bar": "Scoring: 10%|# | 1/10 [00:01<00:09, 1.0s/it, reward=0.5]\n",
}


def numbered(folder: Path, text: str) -> list[tuple[int, tuple[str, ...]]]:
    """Steps and the names of their metrics, which a growing log and a whole reading give alike."""
    (path := folder / "a.log").write_text(text)
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
    text, path = STRAY[stray], tmp_path / "a.log"
    mixed = {
        "before": text + "".join(log),
        "once": log[0] + text + "".join(log[1:]),
        "often": "".join(text * 8 + line for line in log),
    }[times]
    plain = numbered(tmp_path, "".join(log)), open_log(path).kind
    assert (numbered(tmp_path, mixed), open_log(path).kind) == plain
    assert [step for step, _ in plain[0]] == [1, 2, 3, 4, 5]
    assert [step.step for step in open_log(path).last_steps(2)] == [4, 5]


OF_LOOPS = ("rewards", "settings", "config", "episode dict", "episode", "pair", "table", "list", "parallel")
IN_BLOCKS = ("episode", "pair", "list", "parallel")
OWN = {
    "lines": (LINES, ("Loss",)),
    "bars": ([f"Train: 10%|# | {n}0/100 [00:10<01:30, loss=0.5]\n" for n in range(1, 6)], ("loss",)),
    "headed blocks": ([f"===== Step {n}0 =====\nloss: 0.5\nkl: 0.1\n\n" for n in range(1, 6)], ("loss", "kl")),
}


@pytest.mark.parametrize(
    ("stray", "own"),
    [(stray, own) for own in OWN for stray in (IN_BLOCKS if own == "headed blocks" else OF_LOOPS)],
)
def test_the_lines_of_a_trainers_own_loop_are_steps_too(tmp_path, stray, own):
    lines, names = OWN[own]
    found = numbered(tmp_path, "".join(STRAY[stray] + line for line in lines))
    assert found == [(step * 10, names) for step in range(1, 6)]


@pytest.mark.parametrize("stray", ["episode", "table", "list"])
def test_what_is_printed_before_loose_blocks_makes_no_step(tmp_path, stray):
    found = numbered(tmp_path, STRAY[stray] + "\nloss: 0.3\nreward: 0.4\n\nloss: 0.2\nreward: 0.5\n")
    assert [(step, names[-2:]) for step, names in found] == [(1, ("loss", "reward")), (2, ("loss", "reward"))]


def test_episodes_between_the_entries_of_a_block_are_none_of_it(tmp_path):
    blocks = "".join(f"===== Step {n} =====\nEpisode 1\nscore: .5\nloss: .1\nreward: .1\n" for n in (1, 2, 3))
    assert [step for step, _ in numbered(tmp_path, blocks)] == [1, 2, 3]


END = """***** train metrics *****
  epoch                    =        1.0
  total_flos               =  1234567GF
  train_loss               =        0.1
  train_runtime            = 0:00:03.10
***** eval metrics *****
  eval_loss               =     1.2345
  eval_samples_per_second =       25.1
"""
BAR = "\r{}%|# | {}/200 [02:00<38:00, 12.05s/it]"
PANEL = "╭──────── Step {} ────────╮\n│ Step 1: add. So 4. │\n╰────────╯\n"


def with_bars(counts: list[int]) -> str:
    dicts = (f"   {{'loss': 0.{count}{at}5, 'grad_norm': 0.5}}\n" for at, count in enumerate(counts))
    return "".join(BAR.format(1, count) + line for count, line in zip(counts, dicts, strict=True))


TEXTS = {
    "loose blocks, where there is nothing else": (STRAY["rewards"], [1, 2]),
    "dicts whose step has another name": (
        "".join(
            f'{{"train_step": {step}, "loss": 0.5, "max_steps": 90}}\n{{"train_step": {step}, "eval_loss": 0.5}}\n'
            for step in (10, 20, 30)
        ),
        [10, 10, 20, 20, 30, 30],
    ),
    "a number of steps that rises for a while is no step": (
        "".join(f'{{"env_steps": {count}, "loss": 0.{count}}}\n' for count in (3, 4, 5, 6, 4)), [1, 2, 3, 4, 5]
    ),
    "headings of episodes number no dicts": (
        "".join(f"=== Episode {8 * at} ===\nuser: hello\n{line}" for at, line in enumerate(DICTS, 1)), [1, 2, 3, 4, 5]
    ),
    "loose dicts, where there is nothing else": (STRAY["reward dict"], [1]),
    "dicts of evaluations between lines belong to them": (
        "".join(LINES[:4]) + "{'loss': 0.7, 'accuracy': 0.5}\n" + LINES[4] + "{'eval_loss': 0.5}\n",
        [10, 20, 30, 40, 40, 50, 50],
    ),
    "blocks at the end of a script belong to the last step": (
        "".join(DICTS) + "{'train_runtime': 3.1, 'train_loss': 0.1, 'epoch': 1.0}\n" + END,
        [1, 2, 3, 4, 5, 5, 5, 5],
    ),
    "an evaluation has the step of the bar": (
        with_bars([10, 20]) + BAR.format(1, 25) + "\n{'eval_loss': 0.5}\n" + with_bars([30]), [10, 20, 25, 30]
    ),
    "the title of TRL's answers has the step of the dict before it": (
        "".join(line + PANEL.format(10 * at) for at, line in enumerate(DICTS, 1)), [10, 20, 30, 40, 50]
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_the_steps_of_a_text(tmp_path, text):
    assert [step for step, _ in numbered(tmp_path, TEXTS[text][0])] == TEXTS[text][1]


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
    text = with_bars(counts)
    for each in (text, text.replace("\r", "\n").replace("   {", "\n{")):
        assert [step for step, _ in numbered(tmp_path, each)] == wanted


def test_a_bar_that_stands_behind_its_dict_has_its_step(tmp_path):
    text = "".join(f"{line}{BAR.format(1, 10 * at)}\n" for at, line in enumerate(DICTS, 1))
    assert [step for step, _ in numbered(tmp_path, text)] == [10, 20, 30, 40, 50]
    text = "".join(f"{PANEL.format(at)}{line}{BAR.format(1, at)}\n" for at, line in enumerate(DICTS, 1))
    assert [step for step, _ in numbered(tmp_path, text)] == [1, 2, 3, 4, 5]


EVALUATIONS = {
    "LLaMA-Factory": (
        '{"current_steps": %d, "total_steps": 20, "loss": 1.9, "lr": 1e-05, "epoch": 0.5, "percentage": 50.0}\n',
        '{"current_steps": %d, "total_steps": 20, "eval_loss": 1.7, "epoch": 0.5, "percentage": 50.0}\n',
    ),
    "ms-swift": (
        '{"loss": 1.9, "grad_norm": 0.5, "learning_rate": 1e-05, "epoch": 0.5, "global_step/max_steps": "%d/20"}\n',
        '{"eval_loss": 1.7, "eval_runtime": 1.2, "epoch": 0.5, "global_step/max_steps": "%d/20"}\n',
    ),
}


@pytest.mark.parametrize("program", EVALUATIONS)
def test_an_evaluation_that_names_its_step_is_of_that_step(tmp_path, program):
    """Also where it stands before the first training step. A smaller number is of another count: of its own batches."""
    trained, evaluated = EVALUATIONS[program]
    lines = [evaluated % 0, trained % 10, evaluated % 10, trained % 20, evaluated % 1, trained % 30, evaluated % 35]
    found = [(step, "eval_loss" in names, "loss" in names) for step, names in numbered(tmp_path, "".join(lines))]
    assert found == [
        (0, True, False), (10, False, True), (10, True, False), (20, False, True), (30, False, True), (35, True, False)
    ]  # fmt: skip
