"""One run's values as 46 programs, versions and files write them: `FORMS[NAME](RUN)`.

A form has its program's words for our metrics, and writes numbers with all digits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pprint import pformat

Values = Mapping[str, float]
Run = Sequence[Values]
"""Of each step from 1 on, the values by these names: reward, loss, kl, grad_norm, entropy, length, lr."""
STAMP = "2025-05-01 10:00:00"


def collapse(steps: int = 24) -> Run:
    """The reward is lost from step 12 on, and the answers grow and become random."""
    return [
        {
            "reward": 0.6 + 0.004 * (i % 3) if i < 12 else 0.02 + 0.001 * (i % 2), "loss": 1 - 0.0125 * i, "kl": 0.001 * i,
            "grad_norm": 0.5 + 0.03125 * (i % 2), "entropy": 0.5 if i < 12 else 2.75, "length": 100.5 + i, "lr": 1e-06,
        }
        for i in range(1, steps + 1)
    ]  # fmt: skip


def words(text: str) -> Callable[[Values], dict[str, float]]:
    """`reward=rewards/mean ...`: the program's names, in its order."""
    pairs = [pair.partition("=") for pair in text.split()]
    return lambda values: {theirs.replace("~", " "): values[ours] for ours, _, theirs in pairs}


TRL = words(
    "loss=loss grad_norm=grad_norm lr=learning_rate length=completions/mean_length reward=reward kl=kl entropy=entropy"
)
VERL = words(
    "reward=critic/score/mean loss=actor/pg_loss kl=actor/kl_loss grad_norm=actor/grad_norm entropy=actor/entropy "
    "length=response_length/mean lr=actor/lr"
)
PLAIN = words("reward=Reward loss=Loss kl=KL grad_norm=Grad~norm entropy=Entropy lr=LR length=Response~length")
UNDERSCORED = words(
    "reward=reward loss=loss kl=kl grad_norm=grad_norm entropy=entropy lr=learning_rate length=response_length"
)


def bar(step: int, steps: int, title: str = "", tail: str = "") -> str:
    return f"{title}{100 * step // steps:3d}%|█▌        | {step}/{steps} [00:{step:02d}<00:09, 1.50s/it{tail}]"


def lines(of_step: Callable[[int, Values, int], str]) -> Callable[[Run], str]:
    return lambda run: "".join(f"{of_step(i, values, len(run))}\n" for i, values in enumerate(run, 1))


def pairs(values: Mapping[str, float], mark: str = ": ", between: str = " | ") -> str:
    return between.join(f"{name}{mark}{value!r}" for name, value in values.items())


def records(run: Run) -> list[dict[str, float]]:
    return [TRL(values) | {"epoch": i / 8, "step": i} for i, values in enumerate(run, 1)]


def box(step: int, values: Values, steps: int) -> str:
    cells = [f"{name}={value!r}" for name, value in VERL(values).items()]
    rows = [f"│ {a:<40} │ {b:<40} │" for a, b in zip(cells[::2], [*cells[1::2], ""], strict=True)]
    heading = f"╭──── Metric Table ────╮\n│ Global Step: {step}/{steps} │\n├── Training ──┬── Rollout ──┤"
    return "\n".join([heading, *rows, "╰────╯"])


def grid(step: int, values: Values, steps: int) -> str:
    rows = "\n".join(f"│ {name} │ {value!r} │" for name, value in UNDERSCORED(values).items())
    return f"{STAMP} INFO: Step {step}\n┏━━━━┳━━━━┓\n┃ Metric ┃ Value ┃\n┡━━━━╇━━━━┩\n{rows}\n└────┴────┘"


def table(between: str, edge: str = "", rule: str = "") -> Callable[[Run], str]:
    def write(run: Run) -> str:
        rows = [UNDERSCORED(values) for values in run]
        shown = [["Step", *rows[0]], *([str(i), *map(repr, row.values())] for i, row in enumerate(rows, 1))]
        text = [edge + between.join(row) + edge for row in shown]
        return "\n".join([text[0], *([rule] if rule else []), *text[1:]]) + "\n"

    return write


ROLLOUT = words("reward=rollout/raw_reward length=rollout/response_lengths")
STEP = words("loss=train/loss kl=train/kl_loss grad_norm=train/grad_norm entropy=train/entropy_loss lr=train/lr-pg_0")
SPEED = {"perf/rollout_time": 12.5, "perf/tokens_per_gpu_per_sec": 100.0}


def rollouts(per: int) -> Callable[[Run], str]:
    """slime: a rollout and its speed are numbered by the rollout, of which each has `per` steps."""

    def of_step(i: int, values: Values) -> str:
        before = [f"[{STAMP} data.py:9] rollout {i // per}: {ROLLOUT(values)}"] if i % per == 0 else []
        after = [f"[{STAMP} perf.py:9] perf {i // per}: {SPEED}"] if (i + 1) % per == 0 else []
        return "\n".join([*before, f"[{STAMP} model.py:9] step {i}: {STEP(values)}", *after])

    return lambda run: "\n".join(of_step(i, values) for i, values in enumerate(run))


FORMS: Mapping[str, Callable[[Run], str | bytes]] = {
    "trl dicts": lines(lambda i, v, n: str(TRL(v) | {"epoch": i / 8})),
    "trl dicts between bars": lines(lambda i, v, n: f"{bar(i, n)}\r{TRL(v) | {'epoch': i / 8}}"),
    "trl texts of numbers": lines(lambda i, v, n: str({k: repr(x) for k, x in TRL(v).items()})),
    "transformers trainer_state": lambda run: json.dumps({"log_history": records(run), "max_steps": len(run)}),
    "list on a line": lambda run: json.dumps(records(run)),
    "list indented": lambda run: json.dumps(records(run), indent=2),
    "list by Python": lambda run: repr(records(run)),
    "list by pprint": lambda run: pformat(records(run)),
    "list behind a bracket": lambda run: "[" + ",\n ".join(map(json.dumps, records(run))) + "]\n",
    "list in a dict": lambda run: json.dumps({"run": "a", "history": records(run)}),
    "list in a dict indented": lambda run: json.dumps({"run": "a", "history": records(run)}, indent=4),
    "two records on a line": lambda run: "\n".join(f"{a} {b}" for a, b in zip(records(run)[::2], records(run)[1::2], strict=True)),
    "records indented": lambda run: "\n".join(json.dumps(each, indent=4) for each in records(run)),
    "JSON lines": lambda run: "\n".join(map(json.dumps, records(run))),
    "wandb history": lines(lambda i, v, n: json.dumps({f"train/{k}": x for k, x in TRL(v).items()} | {"_step": i, "_timestamp": 1.7e9})),
    "verl": lines(lambda i, v, n: f"(TaskRunner pid=12) step:{i} - {pairs(VERL(v), ':', ' - ')}"),
    "verl with its bar": lines(lambda i, v, n: f"\x1b[36m(TaskRunner pid=12)\x1b[0m step:{i} - {pairs(VERL(v), ':', ' - ')}{bar(i, n, 'Training Progress: ')}"),
    "verl file": lines(lambda i, v, n: json.dumps({"step": i, "data": VERL(v)})),
    "verl bars": lines(lambda i, v, n: bar(i, n, "Training Progress: ", ", " + pairs(UNDERSCORED(v), "=", ", "))),
    "OpenRLHF": lines(lambda i, v, n: bar(i, n, "Train epoch [1/1]: ", ", " + pairs(words("loss=policy_loss reward=reward kl=kl grad_norm=actor_grad_norm entropy=entropy_loss length=response_length lr=actor_lr")(v), "=", ", "))),
    "OpenRLHF dicts": lines(lambda i, v, n: f"(PPOTrainer pid=7) {STAMP}.123 INFO  ppo.py:9 -- Global step {i}: {words('loss=policy_loss reward=reward kl=kl grad_norm=actor_grad_norm entropy=entropy_loss length=response_length lr=actor_lr')(v)}"),
    "NeMo-RL": lines(lambda i, v, n: f"========================= Step {i}/{n} =========================\n▶ Preparing batch...\n\n📊 Training Results:\n" + "".join(f"  • {name}: {x!r}\n" for name, x in words("loss=Loss kl=KL reward=Avg~Reward grad_norm=Grad~Norm entropy=Entropy lr=LR length=Mean~Generation~Length")(v).items()) + "\n⏱️  Timing:\n  • Total step time: 12.50s\n"),
    "slime": rollouts(1),
    "SkyRL": lines(lambda i, v, n: f"{STAMP}.123 | INFO     | skyrl_train.utils.tracking:log:99 - {words('reward=reward/avg_raw_reward loss=policy/policy_loss kl=policy/policy_kl grad_norm=policy/raw_grad_norm entropy=policy/policy_entropy lr=policy/policy_lr length=generate/avg_num_tokens')(v) | {'step': i}}"),
    "ms-swift": lines(lambda i, v, n: str(TRL(v) | {"epoch": i / 8, "global_step/max_steps": f"{i}/{n}", "memory(GiB)": 12.5})),
    "ms-swift JSON": lines(lambda i, v, n: json.dumps(TRL(v) | {"global_step/max_steps": f"{i}/{n}", "elapsed_time": "1m 2s"})),
    "prime-rl": lines(lambda i, v, n: f"10:00:00 SUCCESS Step {i} | Time: 12.50s | {pairs(words('reward=Reward loss=Loss kl=KL grad_norm=Grad.~Norm entropy=Entropy lr=LR length=Seq.~Length')(v))}"),
    "LLaMA-Factory": lines(lambda i, v, n: json.dumps({"current_steps": i, "total_steps": n} | words("loss=loss lr=lr reward=reward kl=kl grad_norm=grad_norm entropy=entropy length=completion_length")(v))),
    "LLaMA-Factory console": lines(lambda i, v, n: f"[INFO|{STAMP}] llamafactory.train.callbacks:143 >> {TRL(v) | {'epoch': i / 8}}"),
    "axolotl": lines(lambda i, v, n: f"{bar(i, n)}\x1b[A\n{ {k: repr(x) for k, x in TRL(v).items()} | {'ppl': '2.5'} }"),
    "notebook by tabs": table("\t"),
    "notebook copied": table("   "),
    "Markdown": table(" | ", "|", "|---|" + "---|" * 7),
    "CSV": table(","),
    "mlx-lm": lines(lambda i, v, n: f"Iter {i}: Train loss {v['loss']!r}, Learning Rate {v['lr']!r}, It/sec 0.512, Tokens/sec 210.5, Trained Tokens {100 * i}, Peak mem 12.345 GB, " + pairs(words("reward=reward kl=kl grad_norm=grad_norm entropy=entropy length=response_length")(v), " ", ", ")),
    "RLinf": lines(box),
    "tinker": lines(grid),
    "torchtune": lines(lambda i, v, n: f"Step {i} | {pairs(UNDERSCORED(v), ':', ' ')} tokens_per_second_per_gpu:812.5"),
    "torchtune bar": lines(lambda i, v, n: f"1|{i}|Loss: {v['loss']!r}: {i}%|█  | {i}/{n} [00:10<00:09, 1.0s/it, {pairs(words('reward=reward kl=kl grad_norm=grad_norm entropy=entropy lr=lr length=response_length')(v), '=', ', ')}]"),
    "AReaL": lines(lambda i, v, n: f"{STAMP} [StatsLogger] Epoch 1/1 Step {i}/{n} Train step {i}/{n} done.\n╭────┬────╮\n" + "".join(f"│ {name:<30} │ {x!r:>12} │\n" for name, x in words("reward=ppo_actor/task_reward/avg loss=ppo_actor/update/loss kl=ppo_actor/kl_rewards/avg grad_norm=ppo_actor/update/grad_norm entropy=ppo_actor/update/entropy/avg lr=ppo_actor/update/lr length=ppo_actor/seq_len/avg")(v).items()) + "╰────┴────╯"),
    "Megatron": lines(lambda i, v, n: f" [{STAMP}] iteration {i:8d}/{n:8d} | consumed samples: {i * 8} | {pairs(words('loss=lm~loss grad_norm=grad~norm lr=learning~rate reward=reward kl=kl entropy=entropy length=response~length')(v))} |"),
    "a line of pairs": lines(lambda i, v, n: f"{STAMP},123 - INFO - step={i} {pairs(UNDERSCORED(v), '=', ' ')}"),
    "a line of columns": lines(lambda i, v, n: f"Step {i}/{n} | {pairs(PLAIN(v))}"),
    "blocks below a heading": lines(lambda i, v, n: f"Step {i}\n{pairs(UNDERSCORED(v), ': ', chr(10))}\n"),
    "blocks with their step": lines(lambda i, v, n: f"step: {i}\n{pairs(UNDERSCORED(v), ': ', chr(10))}\n---"),
}  # fmt: skip
