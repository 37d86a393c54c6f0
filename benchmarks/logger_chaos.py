"""Kill the server KILLS times at random moments while a script logs 500 rows a second: each row must be stored once.

python benchmarks/logger_chaos.py [KILLS] [SEED]
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from logger_platform import Platform

RATE = 500  # rows a second
SCRIPT = """
import sys, time
from launcher.logger import DualLogger
logger, began, until = DualLogger("chaos", sys.argv[1], wandb_enabled=False), time.monotonic(), sys.argv[2]
step = 0
while not __import__("os").path.exists(until):
    logger.log_metrics(step, {"policy_loss": step * 0.1, "reward_mean": 1 / (step + 1), "entropy": 1.5, "lr": 1e-6})
    step += 1
    time.sleep(max(began + step / float(sys.argv[3]) - time.monotonic(), 0.0))
logger.finish()
print(step)
"""


def kill_often(platform: Platform, kills: int, draw: random.Random, longest_s: float = 2.0) -> tuple[int, int, int]:
    """Rows that were logged, lost, and stored twice."""
    platform.start()
    end = platform.root.parent / "end"
    command = [sys.executable, "-c", SCRIPT, platform.url, str(end), str(RATE)]
    with subprocess.Popen(command, env=platform.environment(), stdout=subprocess.PIPE, text=True) as script:
        try:
            for number in range(kills):
                time.sleep(draw.uniform(0.1, longest_s))
                platform.kill()
                print(f"kill {number + 1}: {len(platform.lines('chaos', 'Step'))} rows are stored", flush=True)
                time.sleep(draw.uniform(0.0, 0.5))
                platform.start()
        finally:
            end.touch()
        assert script.stdout
        logged = int(script.stdout.read())
    platform.kill()
    stored = Counter(
        (node["step"], node["metrics"]["actor/pg_loss"], node["metrics"]["critic/score/mean"])
        for node in platform.lines("chaos", "Step")
    )
    expected = {(step, step * 0.1, 1 / (step + 1)) for step in range(logged)}
    return logged, len(expected - stored.keys()), stored.total() - len(expected & stored.keys())


def main() -> None:
    kills, seed = (int(word) for word in [*sys.argv[1:], *["20", "0"][len(sys.argv) - 1 :]])
    with tempfile.TemporaryDirectory() as folder:
        logged, lost, double = kill_often(Platform(Path(folder)), kills, random.Random(seed))
    print(f"{'kills':>6} {'rows':>8} {'lost':>6} {'double':>6}\n{kills:>6} {logged:>8} {lost:>6} {double:>6}")
    sys.exit(int(bool(lost or double)))


if __name__ == "__main__":
    main()
