"""Ours: the tokens of every prompt of a prepared file, `python benchmarks/data_lengths.py PARQUET MODEL`."""

from __future__ import annotations

import json
import sys
import time

from launcher.data.files import Files
from launcher.models.pretrained import Pretrained
from launcher.spec.data import Row
from launcher.text.encoder import Encoder
from launcher.text.lengths import Lengths
from launcher.text.tokenizer import load_tokenizer

source, model = sys.argv[1:]
data = Files(train_files=(source,))
lengths = Lengths(Encoder(load_tokenizer(Pretrained(path=model)), data))
begun = time.process_time()
rows = [row for row in data.read("train", "prompts") if isinstance(row, Row)]
kept = sum(count[0] <= 512 for count in lengths.of(rows, "prompts") if not isinstance(count, str))
print(json.dumps({"rows": kept, "cpu_s": time.process_time() - begun}))
