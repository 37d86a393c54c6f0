"""Each form of log that is read, with the example lines of the documents (their items are cited as S...)."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from launcher.core.events import LogProgress, Sample, Step
from launcher.core.problems import Problems
from launcher.logs.parser import LogParser
from launcher.logs.sources import open_log


def read(text: str | bytes) -> list:
    parser = LogParser()
    raw = text.encode() if isinstance(text, str) else text
    return [*parser.feed(raw), *parser.finish()]


def steps(text: str | bytes) -> list[tuple[int, dict[str, float]]]:
    return [(event.step, dict(event.metrics)) for event in read(text) if isinstance(event, Step)]


def test_s0_a_step_line_as_document_000_prints_it_over_two_lines():
    text = "step:5 - training/global_step:5 - critic/score/mean:0.0234375 -\n"
    text += "critic/rewards/mean:0.0234375 - timing_s/step:41.01343672798248\n"
    score = 0.0234375
    assert steps(text) == [
        (5, {"training/global_step": 5, "critic/score/mean": score, "critic/rewards/mean": score,
             "timing_s/step": 41.01343672798248})
    ]  # fmt: skip


def test_s0_34_signs_and_exponents_are_kept():
    """The document's own `[0-9.]*` loses them."""
    assert steps("step:1 - critic/score/mean:-0.25 - actor/lr:1e-06 - a:-1.5E+3 - b:+2\n") == [
        (1, {"critic/score/mean": -0.25, "actor/lr": 1e-6, "a": -1500.0, "b": 2.0})
    ]


def test_s2_20_a_bar_with_metrics():
    bar = (
        "Training Progress:  15%|█▌        | 49/320 [1:06:07<4:11:40, 55.72s/it, policy_loss=-0.1249, "
        "pg_loss=-0.1250, entropy=0.0321, kl_loss=0.00780, adv_mean=-0.0000, reward=0.3531, grad_norm=0.10]"
    )
    metrics = {
        "policy_loss": -0.1249, "pg_loss": -0.125, "entropy": 0.0321, "kl_loss": 0.0078, "adv_mean": -0.0,
        "reward": 0.3531, "grad_norm": 0.1,
    }  # fmt: skip
    step, progress = read(bar)
    assert (step.step, step.metrics) == (49, metrics)
    seen = progress.step, progress.steps, progress.elapsed_s, progress.left_s, progress.per_step_s
    assert seen == (49, 320, 3967.0, 15100.0, 55.72)


def test_s2_20_a_bar_that_is_drawn_again_is_one_step():
    bar = "Training: 10%|█ | 1/10 [00:01<00:09, 1.0s/it, reward=0.5]"
    assert steps(f"{bar}\r{bar}\r{bar}\n") == [(1, {"reward": 0.5})]


def test_s1_30_the_line_with_bars_between():
    text = "Step 100/10000 | Loss: 0.234 | Reward: 0.856 | KL: 0.0012 | LR: 9.8e-7\n"
    progress, step = read(text)
    assert (progress.step, progress.steps) == (100, 10000)
    assert (step.step, step.metrics) == (100, {"Loss": 0.234, "Reward": 0.856, "KL": 0.0012, "LR": 9.8e-7})


BLOCK = """loss: 0.1234
policy_loss: 0.8567
kl_penalty: 0.0045
mean_ratio: 1.0234
mean_advantage: 0.0123
mean_log_prob_current: -256.78
mean_log_prob_ref: -258.45
mean_reward: 0.6234
std_reward: 0.1234
"""
VALUES = {
    "loss": 0.1234, "policy_loss": 0.8567, "kl_penalty": 0.0045, "mean_ratio": 1.0234, "mean_advantage": 0.0123,
    "mean_log_prob_current": -256.78, "mean_log_prob_ref": -258.45, "mean_reward": 0.6234, "std_reward": 0.1234,
}  # fmt: skip


@pytest.mark.parametrize(
    ("line", "step", "metrics"),
    [
        ("Step 1,000/10,000 | Loss: 1,234.5 | Reward: nan", 1000, {"Loss": 1234.5, "Reward": math.nan}),
        ("[step:7] loss=0.4", 7, {"loss": 0.4}),
        ("[Step 7] loss=0.4, reward=-1e-3", 7, {"loss": 0.4, "reward": -0.001}),
        ("Epoch [1/3], Step [11/100], Loss: 0.3", 11, {"Loss": 0.3}),
        ("step=6 loss=0.4s reward=0.1", 6, {"loss": 0.4, "reward": 0.1}),
        ("step 6 loss=None reward=3", 6, {"reward": 3.0}),
        ("INFO:root:Iteration 8: loss=0.4 reward=0.1", 8, {"loss": 0.4, "reward": 0.1}),
        (" iteration      10/     100 | lm loss: 1.05E+01 | grad norm: 1.1 |", 10, {"lm loss": 10.5, "grad norm": 1.1}),
    ],
)
def test_other_spellings_of_the_line(line, step, metrics):
    ((found, values),) = steps(line + "\n")
    assert found == step and values == pytest.approx(metrics, nan_ok=True)


def test_a_word_that_ends_like_a_step_counts_none():
    assert not steps("Filter 5 loss: 3\nafter 3 steps loss=1\n")


def test_s4_21_the_block():
    assert steps(BLOCK) == [(1, VALUES)]
    assert steps(f"text\n```\n{BLOCK}```\n{BLOCK}") == [(1, VALUES), (2, VALUES)]
    assert steps(BLOCK + BLOCK) == [(1, VALUES), (2, VALUES)]  # no name twice in a block


def test_s4_21_the_block_as_a_list():
    text = "".join(f"- **{name}**: `{value}`\n" for name, value in VALUES.items())
    assert steps(text) == [(1, VALUES)]


PREFIXES = (
    "2024-05-01 10:00:00,123 - INFO - ", "[2024-05-01 10:00:00] ", "2024-05-01T10:00:00.123456789Z stdout F ", "INFO: ",
    "INFO:root:", "[INFO] ", "[rank0]: ", "trainer-1  | ", "INFO 05-01 10:00:00 trainer.py:123] ",
    "[2024-05-01 10:00:00,123][trainer][INFO] - ", "2024-05-01T10:00:00.123Z ",
    "May 01 10:00:00 node01 train[1234]: ", "05/01/2025 10:00:00 - INFO - __main__ - ", "[pod/trainer-0/main] ",
)  # fmt: skip


@pytest.mark.parametrize("prefix", PREFIXES)
def test_s4_21_the_block_behind_what_loggers_and_containers_write(prefix):
    ((_, found),) = steps("".join(prefix + line + "\r\n" for line in BLOCK.splitlines()))
    assert found == VALUES
    text = "".join(f"{prefix}{line}\n" for line in ("Step 5/10", "loss: 0.5", "kl: 0.1"))
    assert steps(text) == [(5, {"loss": 0.5, "kl": 0.1})]


def test_s4_21_a_block_names_its_step():
    assert steps("===== Step 7/20 =====\n" + BLOCK) == [(7, VALUES)]
    assert steps("step: 7\n" + BLOCK) == [(7, VALUES)]


@pytest.mark.parametrize(
    "line",
    ["num_key_value_heads: 2", "Size of val dataloader: 1", "learning_rate: 1e-5", "batch: 3", "port: 29500"],
)
def test_settings_are_no_metrics(line):
    assert not steps(f"{line}\n")


RAY = "\x1b[36m(TaskRunner pid=371299)\x1b[0m "


def test_verl_with_rays_marks_numpy_values_and_nan():
    text = f"{RAY}step:0 - a/x:np.float64(0.5) - a/y:np.int64(2) - b:nan - c:-inf"
    text += "\x1b[32m [repeated 3x across cluster]\x1b[0m\n"
    ((number, found),) = steps(text)
    assert number == 0 and math.isnan(found.pop("b")) and found == {"a/x": 0.5, "a/y": 2.0, "c": -math.inf}


def test_old_verl_counts_the_learning_rate_in_units():
    assert steps("step:3 - actor/lr(1e-4):0.010 - train/lr(1e-3):0.002 - total_tokens(B):6.9e-07\n") == [
        (3, {"actor/lr": 1e-6, "train/lr": 2e-6, "total_tokens(B)": 6.9e-7})
    ]


def test_two_bars_on_one_line_and_a_bar_before_a_step():
    text = "\rEpoch 1/2:  33%|██ | 1/3 [00:04<00:09,  4.72s/it]\rEpoch 2/2:  66%|████ | 2/3 [00:08<00:04,  4.72s/it]"
    events = read(f"{text}step:5 - train/loss:5.8 - train/grad_norm:2.5\n")
    assert [event.metrics for event in events if isinstance(event, Step)] == [
        {"train/loss": 5.8, "train/grad_norm": 2.5}
    ]
    assert [(event.step, event.steps) for event in events if isinstance(event, LogProgress)] == [(1, 6), (5, 6)]


def test_a_bar_behind_a_step_and_two_steps_on_a_line():
    text = "step:1 - a/b:0.5Training Progress:  33%|███ | 1/3 [00:04<00:08,  4.22s/it]\n"
    assert steps(text) == [(1, {"a/b": 0.5})]
    assert steps("step:1 - a/b:0.5step:2 - a/b:0.75\n") == [(1, {"a/b": 0.5}), (2, {"a/b": 0.75})]


def test_bars_of_files_and_rows_are_no_progress():
    assert not read("Loading checkpoint shards:  50%|█████ | 1/2 [00:05<00:04,  5.0s/it]\n")
    assert not read("Map: 60%|███ | 4467/7473 [00:00<00:00, 44463 examples/s]\n")


def test_printed_validation_metrics_over_several_lines():
    text = f"""{RAY}("Initial validation metrics: {{'val-core/openai/gsm8k/reward/mean@1': "
{RAY} '0.221379833206975, '
{RAY} "'val-core/MATH/reward/mean@1': "
{RAY} 'np.float64(0.5140056022408963)}}')
"""
    assert steps(text) == [
        (
            0,
            {
                "val-core/openai/gsm8k/reward/mean@1": 0.221379833206975,
                "val-core/MATH/reward/mean@1": 0.5140056022408963,
            },
        )
    ]
    assert steps("step:9 - a:1\n\"Final validation metrics: {'test_score/gsm8k': 0.5}\"\n")[1] == (
        9,
        {"test_score/gsm8k": 0.5},
    )


def test_verls_file_logger():
    assert steps('{"step":4,"data":{"actor/entropy":5.96875,"actor/lr":1e-6,"note":"x"}}\n') == [
        (4, {"actor/entropy": 5.96875, "actor/lr": 1e-6})
    ]


def test_trl_dicts_are_counted_and_the_rest_is_of_the_last_step():
    text = """{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 4e-05, 'epoch': 0.01}
{'eval_loss': 0.5, 'eval_runtime': 3.2, 'epoch': 0.01}
{'loss': '0.06166', 'grad_norm': '0.1408', 'reward_std': '1.077', 'note': 'x', 'flag': True, 'none': None}
{'train_runtime': 648.2633, 'train_loss': 0.18, 'epoch': 0.05}
"""
    found = steps(text)
    assert [number for number, _ in found] == [1, 1, 2, 2]
    assert math.isnan(found[0][1].pop("grad_norm")) and found[0][1] == {
        "loss": 0.0,
        "learning_rate": 4e-05,
        "epoch": 0.01,
    }
    assert found[2][1] == {"loss": 0.06166, "grad_norm": 0.1408, "reward_std": 1.077}
    assert found[3][1] == {"train_runtime": 648.2633, "train_loss": 0.18, "epoch": 0.05}


def test_one_unreadable_value_of_a_dict_spoils_no_other():
    line = """{'loss': 0.5, 'name': "it's", 'tokens': '1,234', 'kl': tensor(0.25, device='cuda:0'), 'none': None}"""
    assert steps(line + "\n") == [(1, {"loss": 0.5, "tokens": 1234.0, "kl": 0.25})]


@pytest.mark.parametrize("name", ["step", "_step", "train/global_step", "iteration"])
def test_a_dict_names_its_step(name):
    assert steps(f'{{"{name}": 30, "train/loss": 0.5}}\n') == [(30, {"train/loss": 0.5})]


def test_a_dict_that_each_rank_prints_is_one_step_and_a_dead_run_has_many():
    text = "".join(f"{{'loss': {loss}, 'grad_norm': 1.5}}\n" * 4 for loss in (0.5, 0.4))
    assert [step for step, _ in steps(text)] == [1] * 4 + [2] * 4
    assert [step for step, _ in steps("{'loss': 0.0, 'grad_norm': 0.0}\n" * 3)] == [1, 2, 3]
    assert [step for step, _ in steps("{'loss': 0.0, 'grad_norm': nan}\n" * 3)] == [1, 2, 3]


def test_dicts_behind_a_bar_with_tensors_and_as_json():
    bar = " 10%|█ | 10/100 [00:10<01:30, 1.0it/s]"
    assert steps(f"{bar}{{'loss': 0.5, 'kl': tensor(0.25, device='cuda:0')}}\n") == [(10, {"loss": 0.5, "kl": 0.25})]
    assert steps('{"loss": 0.5, "reward": NaN, "global_step/max_steps": "5/100"}\n')[0][0] == 5
    assert steps('{"current_steps": 10, "total_steps": 50, "loss": 0.5, "elapsed_time": "0:00:10"}\n') == [
        (10, {"loss": 0.5})
    ]
    assert steps("Global step 12: {'policy_loss': 0.1, 'reward': 0.5}\n") == [(12, {"policy_loss": 0.1, "reward": 0.5})]


@pytest.mark.parametrize("line", ["{'eos_token_id': 151645, 'lr': 1}", "{'data': {'loss': 1}}", "{}", "{'a'", "} {"])
def test_other_dicts_are_no_metrics(line):
    assert not steps(f"{line}\n")


def test_prime_rl_and_other_lines_with_units():
    text = "12:01:02 SUCCESS Step 3 | Time: 12.35s | Loss: 0.0034 | Throughput: 1,234 tokens/s | MFU: 30.2%\n"
    assert steps(text) == [(3, {"Time": 12.35, "Loss": 0.0034, "Throughput": 1234.0, "MFU": 30.2})]
    assert steps("step 100: train loss 2.3, loss=0.5, reward=0.25\n") == [(100, {"loss": 0.5, "reward": 0.25})]
    assert not steps("Step 2: she sells 9 eggs | total: 18\n")


@pytest.mark.parametrize(
    ("line", "step", "metrics"),
    [
        (  # torchtitan
            "[rank0]:[titan] 2025-05-01 10:00:00,123 - root - INFO - \x1b[31mstep:  1  \x1b[32mloss:  8.0123  "
            "\x1b[38;2;180;60;0mgrad_norm:  1.2345  \x1b[33mmemory: 12.34GiB(15.43%)  \x1b[34mtps: 1,234  "
            "\x1b[35mmfu: 1.23%\x1b[39m",
            1, {"loss": 8.0123, "grad_norm": 1.2345, "memory": 12.34, "tps": 1234.0, "mfu": 1.23},
        ),
        (  # mmengine; a time is no number
            "2025/05/01 10:00:00 - mmengine - INFO - Iter(train) [  10/500]  lr: 1.0e-05  eta: 1:02:03  loss: 1.5",
            10, {"lr": 1e-05, "loss": 1.5},
        ),
        (  # torchtune
            "1|49|Loss: 1.5123: 100%|██████████| 49/49 [10:00<00:00, 10.0s/it]", 49, {"Loss": 1.5123},
        ),
        (  # slime
            "(A pid=12) [2025-05-01 10:00:00] data.py:123 - rollout 7: {'rollout/rewards': 0.1, 'rollout/x': -0.25}",
            7, {"rollout/rewards": 0.1, "rollout/x": -0.25},
        ),
        ('{"step": 3, "train": {"loss": 0.5, "reward": 0.25}, "time": 3}', 3,
         {"train/loss": 0.5, "train/reward": 0.25, "time": 3.0}),
    ],
)  # fmt: skip
def test_lines_of_other_programs(line: str, step: int, metrics: dict[str, float]):
    assert steps(line + "\n") == [(step, metrics)]


def test_a_dict_over_several_lines():
    both = "=== Step 3 ===\n{'loss': 0.5,\n 'reward': np.float64(0.25)}\nstep 4:\n{'loss': 0.25,\n 'reward': 0.5}\n"
    assert steps(both) == [(3, {"loss": 0.5, "reward": 0.25}), (4, {"loss": 0.25, "reward": 0.5})]
    results = {"epoch": 3.0, "eval_loss": 1.2, "train_loss": 0.9, "total_flos": 1.2e15}  # all_results.json
    assert steps(json.dumps(results, indent=4)) == [(0, results)]
    settings = "{'actor': {'loss': 0.5,\n  'train/loss': 1},\n 'critic/lr': 1}\nstep:1 - critic/score/mean:0.5\n"
    assert steps(settings) == [(1, {"critic/score/mean": 0.5})]
    begun = "{'loss': 0.5,\nStep 1 | loss: 0.5\n{'loss': 0.25, 'step': 2}\n{'loss': 0.1,\n"
    assert steps(begun) == [(1, {"loss": 0.5}), (2, {"loss": 0.25})]


def test_a_block_has_names_in_any_language():
    text = "=== Step 1/3 ===\n- policy_loss: 0.1\n- 奖励: 0.5\n- reward: 0.2\n耗时：3.2s\n"
    assert steps(text) == [(1, {"policy_loss": 0.1, "奖励": 0.5, "reward": 0.2, "耗时": 3.2})]


def test_our_own_event_log():
    text = '{"seq":7,"attempt":1,"kind":"Step","at":1.0,"step":3,"metrics":{"train/loss":"NaN"}}\n'
    ((number, found),) = steps(text)
    assert number == 3 and math.isnan(found["train/loss"])


SAMPLE = """[prompt] user: Janet's ducks lay 16 eggs

assistant
[response] Janet eats 3 eggs...
step 2: #### 18
[ground_truth] 18
[score] 1.0
"""


@pytest.mark.parametrize("prefix", ["", RAY])
def test_s2_printed_samples_are_of_the_step_that_follows(prefix):
    lines = "".join(f"{prefix}{line}\n" for line in SAMPLE.splitlines())
    events = read(f"{prefix}step:9 - critic/score/mean:0.5\n{lines}{prefix}step:10 - critic/score/mean:0.5\n{lines}")
    found = [event for event in events if isinstance(event, Sample)]
    assert [sample.step for sample in found] == [10, 11]
    assert (found[0].ground_truth, found[0].score) == ("18", 1.0)
    assert found[0].prompt == "user: Janet's ducks lay 16 eggs\n\nassistant"
    assert found[0].response == "Janet eats 3 eggs...\nstep 2: #### 18"


def test_a_sample_is_not_mixed_with_lines_of_other_processes():
    lines = SAMPLE.splitlines()
    mixed = "".join(f"(TaskRunner pid=1) {line}\n(WorkerDict pid=2) noise\n" for line in lines)
    (found,) = (event for event in read(mixed) if isinstance(event, Sample))
    assert "noise" not in found.prompt + found.response


def test_samples_that_verl_writes_as_lines_of_json():
    node = {"input": "1+1", "output": "2", "gts": "2", "score": 1.0, "step": 20}
    (found,) = read(json.dumps(node) + "\n")
    assert (found.step, found.prompt, found.response, found.ground_truth, found.score) == (20, "1+1", "2", "2", 1.0)


def test_trainer_state(tmp_path: Path):
    history = [
        {"epoch": 0.1, "loss": 0.5, "step": 5},
        {"epoch": 0.1, "loss": math.nan, "step": 10},
        {"eval_loss": 0.25, "note": "ü{[", "step": 10},
    ]
    path = tmp_path / "trainer_state.json"
    text = json.dumps({"best_metric": None, "log_history": history, "max_steps": 40}, indent=2)
    path.write_text(text)
    log = open_log(path)
    found = [event for event in log.events() if isinstance(event, Step)]
    assert log.kind == "trainer_state" and [event.step for event in found] == [5, 10, 10]
    assert math.isnan(found[1].metrics["loss"]) and found[2].metrics == {"eval_loss": 0.25}
    assert [event.steps for event in log.events() if isinstance(event, LogProgress)] == [40]
    path.write_text(text[: text.index("eval_loss")])  # cut while it was written
    with pytest.raises(Problems, match=r"trainer_state.json: .*; use a copy of the whole file"):
        list(open_log(path).events())


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"{RAY}step:1 - a:1\n", "verl"), ('{"step":4,"data":{"a":1}}\n', "verl_file"), ("{'loss': 1.0}\n", "dicts"),
        ("{'loss': 1.0, 'learning_rate': 1e-05, 'epoch': 0.1}\n", "trl"),
        ("Step 1/2 | Loss: 0.5\n", "lines"), (BLOCK, "block"), ("nothing\n", "unknown"), ("", "unknown"),
        ("Training: 10%|█ | 1/10 [00:01<00:09, 1.0s/it, reward=0.5]\n", "bars"),
    ],
)  # fmt: skip
def test_the_form_is_recognised(tmp_path: Path, text: str, kind: str):
    path = tmp_path / "a.log"
    path.write_text(text)
    assert open_log(path).kind == kind


@pytest.mark.parametrize(("line", "step", "metrics"), [
    ("iter 100: loss 3.2145, time 125.30ms, mfu 12.3%", 100, {"loss": 3.2145, "time": 125.3, "mfu": 12.3}),
    ("step 250: train loss 2.96, val loss nan", 250, {"train loss": 2.96, "val loss": math.nan}),
    ("step    1/19560 | loss 11.009 (+nanz)| norm 15.3 (+nanz)| lr 4.29e-07 | 3040.70 ms | 172,423 tok/s", 1,
     {"loss": 11.009, "norm": 15.3, "lr": 4.29e-7}),
    ("[2024-01-01 10:00:00,123] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[1e-05, 1e-05], "
     "mom=[(0.9, 0.95), (0.9, 0.95)]", 10, {"skipped": 0.0, "lr": 1e-5, "mom": 0.9}),
    ("[2024-01-01 10:00:00,124] [INFO] [timer.py:260:stop] epoch=0/micro_step=20/global_step=10, CurrSamplesPerSec=2.5,"
     " MaxMemAllocated=18.7GB", 10,
     {"epoch": 0.0, "micro_step": 20.0, "CurrSamplesPerSec": 2.5, "MaxMemAllocated": 18.7}),
    ("steps: 10 loss: 4.2100 iter time (s): 0.512 samples/sec: 31.251", 10,
     {"loss": 4.21, "iter time (s)": 0.512, "samples/sec": 31.251}),
    ("step 7 loss: 0.5 s grad norm: 0.1 (2%) val loss: 0.2 tok/s time: 3.5 lr=1e-5", 7,
     {"loss": 0.5, "grad norm": 0.1, "val loss": 0.2, "time": 3.5, "lr": 1e-5}),
    (" validation loss at iteration 20 | lm loss value: 8.9E+00 | lm loss PPL: 7.4E+03 | ", 20,
     {"lm loss value": 8.9, "lm loss PPL": 7400.0}),
    ("epoch: 1 | loss: 0.5 | step: 10 | lr: 1e-05", 10, {"epoch": 1.0, "loss": 0.5, "lr": 1e-5}),
])  # fmt: skip
def test_lines_of_nanogpt_llm_c_deepspeed_and_megatron(line, step, metrics):
    ((number, found),) = steps(line + "\n")
    assert number == step
    assert found == pytest.approx(metrics, nan_ok=True)


def test_many_pairs_before_a_step_are_read_in_one_way():
    """Each pair could be split in several ways: with all of them tried this line would never be read to its end."""
    assert steps(f"a{':bcd' * 60}! step 5 | loss: 0.5\n") == [(5, {"loss": 0.5})]


def test_timings_behind_the_line_of_a_step_are_of_that_step():
    text = "[INFO] [Rank 0] step=10, lr=[1e-05]\n[INFO] [Rank 0] time (ms) | fwd: 1.2 | bwd: 3.4 | step: 5.6\n"
    assert steps(text) == [(10, {"lr": 1e-5}), (10, {"fwd": 1.2, "bwd": 3.4, "step": 5.6})]
    assert steps("time (ms) | fwd: 1.2 | bwd: 3.4\n") == []


def test_the_reward_that_deepspeed_chat_prints_behind_a_step_is_of_that_step():
    text = "Epoch: 0 | Step: 5 | PPO Epoch: 1 | Actor Loss: 0.01 | Critic Loss: 0.02 | Unsupervised Loss: 0.0\n"
    text += "End-to-End => Latency: 3.4s, TFLOPs: 20.1\nAverage reward score: 0.53 | EMA reward score: 0.5\n-----\n"
    found = steps(text)
    assert [step for step, _ in found] == [5, 5]
    assert found[1][1] == {"Average reward score": 0.53, "EMA reward score": 0.5}


@pytest.mark.parametrize("line", [
    "Step 1: the loss was 500, and the gain 300",
    "Step 2: Loss 500, so we need 300 more, which is 800",
    "The next step 3, lr=1e-5",
    "shape of step 3 | 5 rows | 7 columns",
    "Step 3 the loss: 0.5 is better than the reward: 0.2",
    "Step 12 of the proof has loss: 0.5 and thus KL: 0.1",
    "Step 3 gives 12 - so the total reward: 5",
])  # fmt: skip
def test_prose_and_settings_with_a_step_are_no_line_of_a_step(line):
    assert steps(line + "\n") == []


def test_dicts_in_a_dict_of_metrics_percent_and_lists_of_one():
    text = "{'loss': 0.3, 'rewards': {'mean': 0.2, 'parts': {'format': '0.1'}}, 'lr': [1e-05], 'done': '1.50%'}\n"
    assert steps(text) == [
        (1, {"loss": 0.3, "rewards/mean": 0.2, "rewards/parts/format": 0.1, "lr": 1e-5, "done": 1.5})
    ]


def test_speeds_of_a_whole_training_stand_behind_its_runtime():
    text = "{'loss': 0.5, 'grad_norm': 1.0}\n***** train metrics *****\n  train_loss = 0.55\n"
    text += "  train_runtime = 0:10:12.34\n  train_samples_per_second = 12.345\n  train_steps_per_second = 0.771\n"
    behind = [metrics for _, metrics in steps(text)][1:]
    assert behind == [{"train_loss": 0.55}, {"train_samples_per_second": 12.345, "train_steps_per_second": 0.771}]


def test_the_timing_of_a_step_stands_under_a_title_of_its_own():
    text = "===== Step 1/100 =====\n📊 Training Results:\n  • Loss: 0.01\n\n⏱️  Timing:\n  • Total step time: 45.12s\n"
    text += "  • generation: 20.10s (44.5%)\n===== Step 2/100 =====\n📊 Training Results:\n  • Loss: 0.02\n"
    assert steps(text) == [(1, {"Loss": 0.01, "Total step time": 45.12, "generation": 20.1}), (2, {"Loss": 0.02})]
