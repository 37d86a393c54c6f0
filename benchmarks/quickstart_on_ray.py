"""The quickstart by plain processes and by Ray: `python benchmarks/quickstart_on_ray.py`.

Ends with 1 where an event of the two (times aside: every metric of every step) or a final weight differs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from chaos import result_of
from rich.console import Console
from rich.table import Table

RECIPE = Path(__file__).parents[1] / "recipes" / "quickstart.sh"
STEPS = {"sft": 1000, "grpo": 400}


def main() -> int:
    table = Table("run", "events", "by Ray and by plain processes", title="the quickstart on two clusters")
    good = True
    with tempfile.TemporaryDirectory() as folder:
        for cluster in ("local", "ray"):
            env, words = {**os.environ, "NAME": cluster}, [str(RECIPE), f"cluster={cluster}"]
            subprocess.run(words, env=env, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        for kind, last in STEPS.items():
            plain, far = (result_of(Path(folder) / f"runs/quickstart/{kind}-{on}", last) for on in ("local", "ray"))
            good &= plain == far
            table.add_row(kind, str(len(plain[0])), "equal, and the weights" if plain == far else "[red]DIFFER[/]")
    Console().print(table)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
