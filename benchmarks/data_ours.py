"""Our part of `data_prepare.py`, in a process of its own: `data_ours.py FILE FOLDER`.

Prepares a file of GSM8K's rows as `rlrun data prepare` does it, and prints the CPU seconds without imports.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from launcher.data.files import Files


def convert(source: str, folder: str) -> dict[str, object]:
    import pyarrow.json  # noqa: F401, PLC0415  the work is measured without what is imported for it

    from launcher.data import convert as _  # noqa: F401, PLC0415  as above
    from launcher.data.prepare import prepare  # noqa: PLC0415  as above

    begun = time.process_time()
    prepare(Files(train_files=(source,), format="gsm8k"), "prompts", Path(folder), lambda at: None)
    return {"cpu_s": time.process_time() - begun}


if __name__ == "__main__":
    print(json.dumps(convert(*sys.argv[1:])))
