"""The same work by the `datasets` library, in its own environment: `datasets_peer.py map|filter SOURCE OUT [MODEL]`.

`map` is what a preparation script does: one function for each row, with its index, then parquet. `filter` keeps the
prompts that the chat template makes at most 512 tokens of.
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
    work, source, out = sys.argv[1:4]
    import datasets  # type: ignore[import-not-found]  # noqa: PLC0415  late: counting is measured without it

    tokenizer = None
    if work == "filter":
        from transformers import AutoTokenizer  # noqa: PLC0415  late, as above

        tokenizer = AutoTokenizer.from_pretrained(sys.argv[4])
    begun = time.process_time()
    if work == "map":
        rows = datasets.load_dataset("json", data_files=source, split="train", cache_dir=f"{out}.cache")
        rows = rows.map(prepared, with_indices=True, remove_columns=["question", "answer"])
        rows.to_parquet(out)
    else:
        rows = datasets.load_dataset("parquet", data_files=source, split="train", cache_dir=f"{out}.cache")
        begun = time.process_time()
        assert tokenizer
        template = tokenizer.apply_chat_template
        asked = {"add_generation_prompt": True, "tokenize": True, "return_dict": False}
        rows = rows.filter(lambda row: len(template(row["prompt"], **asked)) <= 512)
    print(json.dumps({"rows": len(rows), "cpu_s": time.process_time() - begun}))


if __name__ == "__main__":
    main()
