"""Every algorithm for one seed, on 1 and 2 processes, by hashes.

`python benchmarks/equality.py write FILE`, then `compare FILE`:
`write` trains with the package that Python finds (PYTHONPATH chooses another checkout) and writes the SHA-256 of each
run's events and final weights; `compare` trains again and ends with 1 where one differs. A change of structure must
leave all of them equal. Kinds of events and metrics that only the newer version has are left out of its hashes and
counted in the table; one that it no longer has is a difference. `make equality BASE=<commit>` does both. Nothing of the
package is imported, so that two versions of it can be compared.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

COMMON = (
    "data=reverse data.n_prompts=256 data.n_demos=256 data.n_val=32 data.train_batch_size=16 engine.num_threads=1"
    " trainer.project_name=equality"
)
SHORT = "trainer.total_training_steps=8 trainer.test_freq=4 trainer.save_freq=4"
LEARNT = "algorithm=sft model=tiny optim.lr=3e-3 trainer.total_training_steps=150 trainer.experiment_name=learnt"
BEGIN = "model=hf model.path=runs/equality/learnt"  # a model that is sometimes right, so that there is a gradient
SAMPLED = "sampler.n=4 optim.lr=1e-3 trainer.ppo_mini_batch_size=8"
RUNS: Mapping[str, str] = {
    "SFT": f"algorithm=sft optim.lr=1e-3 {BEGIN}",
    "DPO": f"algorithm=dpo optim.lr=1e-3 {BEGIN}",
    "PPO": f"algorithm=ppo critic.optim.lr=1e-3 {SAMPLED} {BEGIN}",
    "GRPO": f"algorithm=grpo {SAMPLED} {BEGIN}",
    "GRPO, KL, LoRA": f"algorithm=grpo algorithm.kl_loss_coef=0.01 model.lora_rank=4 {SAMPLED} {BEGIN}",
    "Dr. GRPO": f"algorithm=dr_grpo {SAMPLED} {BEGIN}",
    "GSPO": f"algorithm=gspo {SAMPLED} {BEGIN}",
    "GSPO self-play": f"algorithm=gspo_selfplay {SAMPLED} {BEGIN}",
    "DAPO": f"algorithm=dapo algorithm.overlong_buffer_len=2 {SAMPLED} {BEGIN}",
    "GRPO, FSDP2": f"algorithm=grpo engine.strategy=fsdp2 {SAMPLED} {BEGIN}",
}
PROCESSES = (1, 2)
OF_PROCESSES = ("Usage", "Restarted", "Stalled", "WentOn", "Waiting", "Ended")  # what became of them is no result
OF_LOG = ("at", "seq", "attempt", "run")  # the clock, the place in the log and the run's name
TIMES = ("timing_s/", "timing_per_token_ms/", "perf/")

Run = dict[str, Any]
"""`events` and `weights`, hashes of them; `names`, the kinds of events and the metrics that the first hash is of."""
Runs = dict[str, Run]


def train(words: str) -> None:
    command = [sys.executable, "-m", "launcher", "train", *f"{COMMON} {words}".split()]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr[-3000:]}")


def results(folder: Path) -> Iterator[dict[str, Any]]:
    """Each event of training, as equal runs have it equal."""
    for line in (folder / "events.jsonl").read_text().splitlines():
        event: dict[str, Any] = json.loads(line)
        if event["kind"] in OF_PROCESSES:
            continue
        kept = {name: value for name, value in event.items() if name not in OF_LOG}
        if event["kind"] == "Step":
            kept["metrics"] = {name: x for name, x in event["metrics"].items() if not name.startswith(TIMES)}
        yield kept


def names_of(events: Sequence[Mapping[str, Any]]) -> set[str]:
    """The kinds of the events and the metrics of the steps."""
    return {event["kind"] for event in events} | {name for event in events for name in event.get("metrics", {})}


def among(names: set[str], events: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The events with only these kinds and metrics, as text."""
    for event in events:
        if event["kind"] in names:
            if "metrics" in event:
                event = {**event, "metrics": {name: x for name, x in event["metrics"].items() if name in names}}
            yield json.dumps(event, sort_keys=True)


def hashed(folder: Path, before: Run) -> Run:
    """Of all kinds of events and metrics, or of those that the run had `before`."""
    newest = max((folder / "checkpoints").glob("step_*"))
    weights = sorted((newest / "policy").glob("*.safetensors"))
    events = list(results(folder))
    if not any(event["kind"] == "Step" for event in events) or not weights:
        raise SystemExit(f"{folder} holds no steps or no weights, so that equal hashes would prove nothing")
    names = names_of(events)
    text = "\n".join(among(set(before.get("names", names)), events))
    of_weights = hashlib.sha256(b"".join(path.read_bytes() for path in weights))
    return {
        "events": hashlib.sha256(text.encode()).hexdigest(), "weights": of_weights.hexdigest(), "names": sorted(names)
    }  # fmt: skip


def measured(before: Runs) -> Runs:
    found: Runs = {}
    train(LEARNT)
    for number, (name, words) in enumerate(RUNS.items()):
        for processes in PROCESSES:
            run, both = f"{number}-{processes}", f"{name}, {processes}"
            train(f"{words} {SHORT} hardware.nproc_per_node={processes} trainer.experiment_name={run}")
            found[both] = hashed(Path("runs/equality") / run, before.get(both, {}))
    return found


def compare(before: Runs, after: Runs) -> bool:
    table = Table("run, processes", "events", "weights", "names only after", title="before and after")
    equal = True
    for name, old in before.items():
        now = after[name]
        same = {what: now[what] == old[what] for what in ("events", "weights")}
        more = len(set(now["names"]) - set(old["names"]))
        table.add_row(name, *("equal" if good else "[red]DIFFERS[/]" for good in same.values()), str(more))
        equal &= all(same.values())
    Console().print(table)
    return equal


def main(action: str, file: Path) -> int:
    before: Runs = json.loads(file.read_text()) if action == "compare" else {}
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        found = measured(before)
    if action == "write":
        file.write_text(json.dumps(found, indent=1) + "\n")
        return 0
    return 0 if compare(before, found) else 1


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("write", "compare"):
        raise SystemExit(__doc__)
    sys.exit(main(sys.argv[1], Path(sys.argv[2]).resolve()))
