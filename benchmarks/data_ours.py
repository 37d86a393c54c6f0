"""Our part of `data_prepare.py`, in a process of its own: `data_ours.py convert FILE | lengths PARQUET MODEL`.

`convert` prepares a file of GSM8K's rows as `rlrun data prepare` does it; `lengths` counts the tokens of every prompt
of a prepared file. Both print their CPU seconds, without imports.
"""

from __future__ import annotations

import json
import sys
import time

from launcher.data.files import Files


def convert(source: str) -> dict[str, object]:
    import pyarrow.json  # noqa: F401, PLC0415  the work is measured without what is imported for it

    from launcher.data import convert as _  # noqa: F401, PLC0415  as above
    from launcher.data.prepare import prepare  # noqa: PLC0415  as above

    begun = time.process_time()
    folder = prepare(Files(train_files=(source,), format="gsm8k"), "prompts", "rows", lambda at: None)
    return {"folder": str(folder), "cpu_s": time.process_time() - begun}


def lengths(source: str, model: str) -> dict[str, object]:
    from launcher.models.pretrained import Pretrained  # noqa: PLC0415  `convert` does without
    from launcher.spec.data import Row  # noqa: PLC0415  as above
    from launcher.text.encoder import Encoder  # noqa: PLC0415  as above
    from launcher.text.lengths import count_tokens  # noqa: PLC0415  as above
    from launcher.text.tokenizer import load_tokenizer  # noqa: PLC0415  as above

    data = Files(train_files=(source,))
    encoder = Encoder(load_tokenizer(Pretrained(path=model)), data)
    begun = time.process_time()
    rows = [row for row in data.read("train", "prompts") if isinstance(row, Row)]
    short = sum(count[0] <= 512 for count in count_tokens(encoder, rows, "prompts") if not isinstance(count, str))
    return {"rows": short, "cpu_s": time.process_time() - begun}


if __name__ == "__main__":
    print(json.dumps(convert(*sys.argv[2:]) if sys.argv[1] == "convert" else lengths(*sys.argv[2:])))
