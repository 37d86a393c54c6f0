"""The same work by the `datasets` library, in its own environment: `datasets_peer.py SOURCE OUT`.

It is what a preparation script does: one function for each row, with its index, then parquet.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'


def prepared(row: dict[str, Any], index: int) -> dict[str, Any]:
    solution = row["answer"]
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": f"{row['question']} {INSTRUCTION}"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": solution.split("####")[1].strip().replace(",", "")},
        "extra_info": {"split": "train", "index": index},
    }


def main() -> None:
    source, out = sys.argv[1:]
    import datasets  # type: ignore[import-not-found]  # noqa: PLC0415  the work is measured without its import

    begun = time.process_time()
    rows = datasets.load_dataset("json", data_files=source, split="train", cache_dir=f"{out}.cache")
    rows = rows.map(prepared, with_indices=True, remove_columns=["question", "answer"])
    rows.to_parquet(out)
    print(json.dumps({"rows": len(rows), "cpu_s": time.process_time() - begun}))


if __name__ == "__main__":
    main()
