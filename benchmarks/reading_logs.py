"""Reading logs that other programs wrote: `reading_logs.py [--logs FOLDER]`.

1. Mutated lines of all forms: exceptions, which must be none, and CPU time of the whole against that of a quarter.
2. With a folder of logs: the values read of each, against a count that knows none of our code.

Ends with 1 where a count differs or something is raised.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from launcher.core.events import Step
from launcher.logs.parser import LogParser
from launcher.logs.sources import open_log

PREFIX = "\x1b[36m(TaskRunner pid=3712)\x1b[0m "
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


def mutated(lines: int, seed: int = 0) -> Iterator[bytes]:
    """Lines of all forms with bytes and pieces changed, cut, doubled and put together."""
    rng, sources = random.Random(seed), [text.encode() for text in SAMPLES]
    pieces = [text.encode() for text in (" - ", "nan", "1e999", "step:", "%|", "\r", "\x1b[", *":{}'\"|[]")]
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


def fuzz(lines: int) -> None:
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
    parser.add_argument("--logs", type=Path, action="append", default=[])
    given = parser.parse_args()
    fuzz(100_000)
    equal = [counts(folder) for folder in given.logs]
    return 0 if all(equal) else 1


if __name__ == "__main__":
    sys.exit(main())
