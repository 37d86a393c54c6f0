"""The peer of `train_vs_trl.py` and `trajectory.py`: TRL as a script would use it. Runs in an environment that has TRL,
and only there.

    python trl_peer.py sft|dpo|grpo MODEL_FOLDER ROWS.jsonl STEPS LOG SCRATCH THREADS [TrainingArguments as JSON]

For each optimizer step one JSON line is added to LOG: CPU seconds since the end of the step before (so that
collating and generating count), real tokens, answers and the tokens in them. TRL's defaults that are changed, all in
its favour or for equal work: no gradient checkpointing, float32 instead of bf16, rows in file order, no reports, no
progress bar, no checkpoint.

The JSON may hold more than TrainingArguments: `dropout` (false: none), and `seeds`, one for torch in each step. With
seeds LOG gets a second line for each step, its loss, gradient norm, learning rate and rows, and SCRATCH the weights in
the end.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback

SHARED: dict[str, Any] = {
    "use_cpu": True, "bf16": False, "gradient_checkpointing": False,
    "optim": "adamw_torch_fused", "learning_rate": 1e-9, "lr_scheduler_type": "constant", "weight_decay": 0.01,
    "max_grad_norm": 1.0, "report_to": "none", "logging_strategy": "no", "save_strategy": "no",
    "disable_tqdm": True, "dataloader_pin_memory": False, "train_sampling_strategy": "sequential",
}  # fmt: skip
SFT: dict[str, Any] = {"completion_only_loss": True, "packing": False, "padding_free": False}
GRPO: dict[str, Any] = {
    "num_generations": 8, "num_iterations": 1, "beta": 0.0, "loss_type": "grpo", "temperature": 1.0,
    "use_vllm": False, "shuffle_dataset": False,
}  # fmt: skip


class Meter(TrainerCallback):
    """Writes down every step; `count` is told the batch that a step computes."""

    def __init__(self, log: Path) -> None:
        self.log = log.open("a")
        self.before, self.tokens, self.answers, self.answer_tokens = 0.0, 0, 0, 0

    def count(self, inputs: dict[str, Any]) -> None:
        if "completion_ids" in inputs:  # GRPO: prompts and answers are padded apart
            answer = inputs["completion_mask"]
            self.tokens += int(inputs["prompt_mask"].sum() + answer.sum())
        else:
            answer = inputs["completion_mask"] if "completion_mask" in inputs else inputs["labels"] >= 0
            self.tokens += int(inputs["attention_mask"].sum() if "attention_mask" in inputs else answer.numel())
        self.answers += len(answer)
        self.answer_tokens += int(answer.sum())

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.before = time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        now = time.process_time()
        seen = {"cpu_s": now - self.before, "tokens": self.tokens, "answer": self.answer_tokens / self.answers}
        print(json.dumps(seen), file=self.log, flush=True)
        self.tokens, self.answers, self.answer_tokens = 0, 0, 0
        self.before = time.process_time()


class Follower(Meter):
    """Seeds each step, and writes down what it came to."""

    def __init__(self, log: Path, seeds: list[int]) -> None:
        super().__init__(log)
        self.seeds, self.rows = seeds, list[list[int]]()

    def count(self, inputs: dict[str, Any]) -> None:
        super().count(inputs)
        ids = inputs["input_ids"]
        if "position_ids" in inputs:  # packed
            starts = (inputs["position_ids"][0] == 0).nonzero()[:, 0].tolist()
            self.rows += [part.tolist() for part in ids[0].tensor_split(starts[1:])]
        else:
            lengths = inputs["attention_mask"].sum(1).tolist()
            self.rows += [row[:length].tolist() for row, length in zip(ids, lengths, strict=True)]

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        torch.manual_seed(self.seeds[state.global_step])

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:
        if "loss" in logs:
            seen = {name: logs[name] for name in ("loss", "grad_norm", "learning_rate")}
            print(json.dumps({**seen, "rows": self.rows}), file=self.log, flush=True)
            self.rows = []


def right(completions: list[str], ground_truth: list[str], **_: Any) -> list[float]:
    """1.0 where the last number of an answer is the true one."""
    given = [re.findall(r"[-+]?(?:\d+(?:\.\d+)?|\.\d+)", text.replace(",", "")) for text in completions]
    return [
        float(bool(found) and float(found[-1]) == float(true)) for found, true in zip(given, ground_truth, strict=True)
    ]


def trainer_of(work: str, model: Any, rows: Any, meter: Meter, arguments: dict[str, Any], **more: Any) -> Any:
    """TRL's trainer for the work; only that one is imported."""
    if work == "sft":
        from trl import SFTConfig, SFTTrainer  # type: ignore[import-not-found]  # noqa: PLC0415

        base, config = SFTTrainer, SFTConfig(**{**SFT, **arguments})
        rows = rows.rename_column("response", "completion")
    elif work == "dpo":
        from trl import DPOConfig, DPOTrainer  # noqa: PLC0415

        base, config = DPOTrainer, DPOConfig(**arguments, beta=0.1, precompute_ref_log_probs=False)
    else:
        from trl import GRPOConfig, GRPOTrainer  # noqa: PLC0415

        base, config = GRPOTrainer, GRPOConfig(**{**GRPO, **arguments})
        more["reward_funcs"] = right

    class Counted(base):  # type: ignore[misc, valid-type]
        def _prepare_inputs(self, inputs: Any) -> Any:
            prepared = super()._prepare_inputs(inputs)
            meter.count(prepared)
            return prepared

    return Counted(model=model, args=config, train_dataset=rows, callbacks=[meter], **more)


def main(
    work: str, folder: str, data: str, steps: str, log: str, scratch: str, threads: str, given: str = "{}"
) -> None:
    from datasets import Dataset  # type: ignore[import-not-found]  # noqa: PLC0415

    torch.set_num_threads(int(threads))
    rows = Dataset.from_list([json.loads(line) for line in Path(data).read_text().splitlines()])
    options = json.loads(given)
    dropout, seeds = options.pop("dropout", True), options.pop("seeds", None)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if not dropout:
        from trl.trainer.utils import disable_dropout_in_model  # type: ignore[import-not-found]  # noqa: PLC0415

        disable_dropout_in_model(model)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    arguments = {**SHARED, "output_dir": scratch, "max_steps": int(steps), **options}
    meter = Follower(Path(log), seeds) if seeds else Meter(Path(log))
    trainer_of(work, model, rows, meter, arguments, processing_class=tokenizer).train()
    if seeds:
        model.save_pretrained(scratch)


if __name__ == "__main__":
    main(*sys.argv[1:])
