"""Reading logs that other programs wrote: `reading_logs.py [--megabytes 1000] [--lines 100000] [--logs FOLDER]`.

1. A verl console log of that size (step lines of 40 metrics, a progress bar after each): MB a CPU second for all
   metrics of all steps, memory, and the CPU seconds of its last 10 steps.
2. Mutated lines of all forms: exceptions, which must be none, and CPU time of the whole against that of a quarter.
3. With a folder of logs: the values read of each, against a count that knows none of our code.

Ends with 1 where a count differs or something is raised.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from launcher.core.events import Step
from launcher.logs.parser import LogParser
from launcher.logs.sources import open_log

NAMES = [
    "training/global_step", "training/epoch", "critic/score/mean", "critic/score/max", "critic/score/min",
    "critic/rewards/mean", "critic/rewards/max", "critic/rewards/min", "critic/advantages/mean",
    "critic/advantages/max", "critic/advantages/min", "critic/returns/mean", "critic/returns/max",
    "critic/returns/min", "response_length/mean", "response_length/max", "response_length/min",
    "response_length/clip_ratio", "prompt_length/mean", "prompt_length/max", "prompt_length/min",
    "prompt_length/clip_ratio", "actor/entropy", "actor/pg_loss", "actor/pg_clipfrac", "actor/ppo_kl",
    "actor/grad_norm", "actor/lr", "perf/mfu/actor", "perf/max_memory_allocated_gb", "perf/max_memory_reserved_gb",
    "perf/cpu_memory_used_gb", "timing_s/gen", "timing_s/reward", "timing_s/old_log_prob", "timing_s/adv",
    "timing_s/update_actor", "timing_s/step", "perf/total_num_tokens", "perf/throughput",
]  # fmt: skip
PREFIX = "\x1b[36m(TaskRunner pid=3712)\x1b[0m "
VARIANTS = 500  # different lines of values; the rest repeats them
SAMPLES = [
    PREFIX + "step:5 - training/global_step:5 - critic/score/mean:0.0234375 - timing_s/step:41.01343672798248",
    "step:0 - val-core/gsm8k/reward/mean@1:np.float64(0.5) - val-aux/num_turns/min:np.int64(2)",
    "step:7 - actor/lr(1e-4):0.010 - actor/entropy_loss:nan - timing/gen:18.859\x1b[32m [repeated 3x across cluster]",
    "Training Progress:  15%|█▌        | 49/320 [1:06:07<4:11:40, 55.72s/it, pg_loss=-0.1250, reward=0.3531]",
    "\rEpoch 1/2:  33%|███▎      | 1/3 [00:04<00:09,  4.72s/it]step:2 - train/loss:5.8125 - train/grad_norm:2.59",
    "{'loss': 0.0774, 'grad_norm': nan, 'learning_rate': '5.26e-07', 'reward': 0.925, 'epoch': 0.05}",
    '{"step":4,"data":{"actor/entropy":5.96875,"actor/lr":1e-6}}',
    '{"loss": -0.0, "grad_norm": 0.0, "reward": 0.707, "global_step/max_steps": "5/100", "kl": 0.0}',
    "Step 100/10000 | Loss: 0.234 | Reward: 0.856 | KL: 0.0012 | LR: 9.8e-7",
    "- **mean_log_prob_current**: `-256.78`",
    "policy_loss: 0.8567",
    "### 1. **loss** (total)",
    "(\"Initial validation metrics: {'val-core/gsm8k/reward/mean@1': \"",
    " '0.221379833206975}')",
    "[prompt] user: Janet's ducks lay 16 eggs",
    "[response] She eats 3 eggs. #### 18",
    "[ground_truth] 18",
    "[score] 1.0",
    '{"seq":7,"attempt":1,"kind":"Step","at":1700000000.0,"step":3,"metrics":{"train/loss":1.2}}',
]


def make_log(path: Path, size: int) -> int:
    """Write a log of at least `size` bytes; returns its steps."""
    rng = random.Random(0)
    values = [
        [repr(rng.random() * 100) if i % 2 else repr(round(rng.random(), 4)) for i in range(len(NAMES) - 1)]
        for _ in range(VARIANTS)
    ]
    step = written = 0
    with path.open("w", encoding="utf-8") as file:
        while written < size:
            step += 1
            pairs = zip(NAMES, (str(step), *values[step % VARIANTS]), strict=True)
            line = f"{PREFIX}step:{step} - " + " - ".join(f"{name}:{value}" for name, value in pairs)
            bar = f"{PREFIX}\rTraining Progress:  15%|█▌        | {step}/900000 [1:06:07<4:11:40, 55.72s/it]"
            written += len((text := f"{line}\n{bar}\n").encode())
            file.write(text)
    return step


def read(path: Path) -> dict[str, float]:
    """In a process of its own: what reading all of a log and its last steps costs."""
    begin = time.process_time()
    steps = values = 0
    for event in open_log(path).events():
        if isinstance(event, Step):
            steps, values = steps + 1, values + len(event.metrics)
    all_s = time.process_time() - begin
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    begin = time.process_time()
    last = open_log(path).last_steps(10)
    return {
        "steps": steps, "values": values, "cpu_s": all_s, "memory_mb": memory, "last": last[-1].step,
        "last_s": time.process_time() - begin,
    }  # fmt: skip


def speed(megabytes: int) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "verl.log"
        steps = make_log(path, megabytes * 10**6)
        size = path.stat().st_size / 1e6
        ran = subprocess.run([sys.executable, __file__, "--read", path], check=True, capture_output=True, text=True)
    found = json.loads(ran.stdout)
    print(f"a log of {size:,.0f} MB, {steps:,} steps of {len(NAMES)} metrics")
    print(f"  {size / found['cpu_s']:.0f} MB a CPU second ({found['cpu_s']:.2f} s), {found['memory_mb']:.0f} MB memory")
    print(f"  last 10 steps: {found['last_s']:.4f} CPU seconds")
    return bool((found["steps"], found["values"], found["last"]) == (steps, steps * len(NAMES), steps))


def mutated(lines: int, seed: int = 0) -> Iterator[bytes]:
    """Lines of all forms with bytes and pieces changed, cut, doubled and put together."""
    rng, sources = random.Random(seed), [text.encode() for text in SAMPLES]
    pieces = [
        b" - ",
        b":",
        b"{",
        b"}",
        b"'",
        b'"',
        b"|",
        b"%|",
        b"[",
        b"]",
        b"nan",
        b"1e999",
        b"step:",
        b"\r",
        b"\x1b[",
    ]
    for _ in range(lines):
        line = bytearray(rng.choice(sources))
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(len(line) + 1)
            kind = rng.randrange(6)
            if kind == 0 and line:
                line[place % len(line)] = rng.randrange(256)
            elif kind == 1:
                line[place:place] = rng.choice(pieces)
            elif kind == 2:
                del line[place : place + rng.randint(1, 20)]
            elif kind == 3:
                line += rng.choice(sources)[rng.randrange(20) :]
            elif kind == 4:
                line[place:place] = line[: rng.randint(1, 40)]
            else:
                line[place:place] = bytes([line[place - 1] if line else 48]) * rng.choice((2, 50, 2_000))
        yield bytes(line) + b"\n"


def fuzz(lines: int) -> bool:
    texts = list(mutated(lines))
    times = []
    for part in (texts[: lines // 4], texts):
        begin, count, parser = time.process_time(), 0, LogParser()
        for start in range(0, len(part), 100):
            count += sum(1 for _ in parser.feed(b"".join(part[start : start + 100])))
        count += sum(1 for _ in parser.finish())
        times.append((time.process_time() - begin) / sum(map(len, part)))
    size = sum(map(len, texts)) / 1e6
    print(f"{lines:,} mutated lines, {size:.0f} MB: 0 exceptions, {count:,} events, {times[1] * 1e6:.3f} CPU s a MB")
    print(f"  the first quarter: {times[0] * 1e6:.3f} CPU s a MB")
    return True


NUMBER = re.compile(r"(?:np\.\w+\()?[-+]?(?:[0-9]|\.[0-9]|nan|inf)")
VALUE = re.compile(r"""['"]: ['"]?(?:np\.\w+\()?[-+]?(?:[0-9]|nan|inf)""")
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def simple_count(text: str) -> int:
    """The values of a log, counted line by line."""
    count, printed = 0, ""
    for line in ANSI.sub("", text).replace("\r", "\n").split("\n"):
        if printed or "validation metrics: {" in line:
            printed += re.sub(r"^\(\w+ pid=[0-9]+\)", "", line).strip().strip("()").strip("'\"")
            if "}" in line:
                count, printed = count + len(re.findall(r"': ['\"]?(?:np\.\w+\()?[-+0-9n]", printed)), ""
        elif found := re.search(r"(?<![\w/])step:[0-9]+ - (.*)", line) or re.search(r"\]step:[0-9]+ - (.*)", line):
            count += sum(bool(NUMBER.match(part.rpartition(":")[2])) for part in found[1].split(" - "))
        elif line.startswith('{"step":'):
            count += len(json.loads(line)["data"])
        elif line.startswith(("{'loss", "{'train_runtime", "{'eval", '{"loss')):
            count += len(VALUE.findall(line))
    return count


def counts(folder: Path) -> bool:
    good = True
    for path in sorted(path for path in folder.rglob("*") if path.suffix in (".log", ".txt", ".jsonl")):
        log = open_log(path)
        values = sum(len(event.metrics) for event in log.events() if isinstance(event, Step))
        wanted = simple_count(path.read_bytes().decode("utf-8", "replace"))
        good = good and values == wanted
        found = "equal" if values == wanted else "DIFFERS"
        print(f"{found:<8}{values:>8,} {wanted:>8,}  {log.kind:<10} {path.name}")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--logs", type=Path, action="append", default=[])
    parser.add_argument("--read", type=Path)
    given = parser.parse_args()
    if given.read:
        print(json.dumps(read(given.read)))
        return 0
    good = [speed(given.megabytes)] if given.megabytes else []
    good += [fuzz(given.lines)] if given.lines else []
    good += [counts(folder) for folder in given.logs]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
