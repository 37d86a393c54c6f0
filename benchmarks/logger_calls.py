"""How long the script waits in a call of DualLogger, with the platform up, down, hanging, and answering 500.

python benchmarks/logger_calls.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from logger_platform import Platform

SCRIPT = """
import sys, time
from launcher.logger import DualLogger
began = time.perf_counter()
logger, took = DualLogger("calls", sys.argv[1], wandb_enabled=False), []
made = time.perf_counter() - began
for step in range(5_000):
    metrics = {"policy_loss": 0.5 - step * 3e-5, "reward_mean": 0.3, "reward_std": 0.2, "kl_divergence": 0.01, "entropy": 1.5}
    before = time.perf_counter()
    logger.log_metrics(step=step, metrics=metrics, epoch=step // 1000)
    after = time.perf_counter()
    took.append(after - before)
    if step % 100 == 0:
        logger.log_gpu_usage(0, utilization=92.5, memory_used=65.0, memory_total=80.0, temperature=72.0)
        took.append(time.perf_counter() - after)
    time.sleep(0.001)
before = time.perf_counter()
logger.finish()
took.sort()
numbers = [took[len(took) // 2] * 1e3, took[len(took) * 99 // 100] * 1e3, took[-1] * 1e3, made, time.perf_counter() - before]
print(*(f"{number:10.3f}" for number in numbers))
"""  # noqa: E501


@contextmanager
def wrong_server(hangs: bool) -> Iterator[str]:
    """Answers 500, or nothing."""
    released = threading.Event()

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            if hangs:
                released.wait()
            else:
                self.send_error(500)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        released.set()
        server.shutdown()


def main() -> None:
    names = ("p50 ms", "p99 ms", "max ms", "made s", "finish s")
    print(f"{'platform':<12}", *(f"{name:>10}" for name in names), f"{'exit code':>10}", flush=True)
    with tempfile.TemporaryDirectory() as folder, wrong_server(True) as hangs, wrong_server(False) as fails:
        platform = Platform(Path(folder))
        for name, url in (("down", platform.url), ("hangs", hangs), ("answers 500", fails), ("up", platform.url)):
            if name == "up":
                platform.start()
            command = [sys.executable, "-c", SCRIPT, url]
            more = platform.environment(RLRUN_FINISH_S="5", RLRUN_SPOOL=str(Path(folder, name)))
            ran = subprocess.run(command, env=more, capture_output=True, text=True)
            print(f"{name:<12} {ran.stdout.strip()} {ran.returncode:>10}", flush=True)
        platform.kill()


if __name__ == "__main__":
    main()
