"""Ours: a file of GSM8K's rows, prepared as `rlrun data prepare` does it: `python benchmarks/data_convert.py FILE`."""

from __future__ import annotations

import json
import sys
import time

import pyarrow.json  # noqa: F401  the work is measured without what is imported for it

from launcher.data import convert  # noqa: F401  as above
from launcher.data.files import Files
from launcher.data.prepare import prepare

begun = time.process_time()
folder = prepare(Files(train_files=(sys.argv[1],), format="gsm8k"), "prompts", "rows", lambda _: None)
print(json.dumps({"folder": str(folder), "cpu_s": time.process_time() - begun}))
