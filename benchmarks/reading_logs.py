"""The values read of each log in FOLDER, against a count that knows none of our code: `reading_logs.py FOLDER`.

Ends with 1 where a count differs.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from launcher.core.events import Step
from launcher.logs.sources import open_log

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


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("give the folder of the logs: make logs LOGS=FOLDER")
    sys.exit(0 if counts(Path(sys.argv[1])) else 1)
