"""Draw docs/console.svg: the live view as it stood in the middle of the newest quickstart run."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from rich.console import Console

from launcher.cli.live_view import picture
from launcher.core.events import Step, events_of
from launcher.core.state import RunState, after

AT_STEP = 260


def main() -> int:
    logs = sorted(Path("runs/quickstart").glob("grpo-*/events.jsonl"), key=lambda path: path.stat().st_mtime)
    if not logs:
        print("no quickstart run; run make demo", file=sys.stderr)
        return 1
    state = RunState()
    for event in events_of(logs[-1]):
        state = after(state, event)
        if isinstance(event, Step) and event.step == AT_STEP:
            break
    console = Console(record=True, width=76, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    console.print(picture(state, state.last_at or 0.0))
    svg = console.export_svg(title="rlrun train")
    Path("docs/console.svg").write_text(re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL))  # fonts of the reader
    print("docs/console.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
