"""64 episodes whose tools take 0 to 5 seconds each, in real processes: how long all of them take against the longest
chain of tools, and how often the generator waited while an episode was ready.

    python benchmarks/episodes.py
    python benchmarks/episodes.py vllm      # instead: how much faster two vLLM workers sample 64 episodes than one
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from launcher.core.events import Step, events_of
from launcher.data.files import Files
from launcher.engines.torch.model.load import load_model
from launcher.engines.torch.model.network import CausalLM
from launcher.engines.torch.rollout.episodes import EpisodeRunner
from launcher.engines.torch.rollout.generator import Generator, Request
from launcher.engines.torch.rollout.sampler import TorchSampler
from launcher.environments.python import PythonEnvironment
from launcher.models.scratch import Scratch
from launcher.spec.data import Message, Row
from launcher.spec.episode import Turn
from launcher.text.bridge import Bridge
from launcher.text.encoder import Encoder

EPISODES, TURNS, LONGEST_S, MOST = 64, 4, 5.0, 1.3
CLASS = """
import time

class Waits:
    def reset(self, row):
        pass

    def wait(self, seconds: float) -> str:
        "Wait."
        time.sleep(seconds)
        return "waited"

    def reward(self, episode):
        return 1.0
"""


FREE = """
import asyncio
import random

from launcher.spec.data import Message
from launcher.spec.environment import Observation

class Free:
    async def step(self, episode, answer):
        if len(episode.turns) == 3:
            return Observation(ended="finished")
        await asyncio.sleep(random.uniform(0, 0.5))
        return Observation((Message("user", "go on " * 20),))

    def reward(self, episode):
        return 1.0
"""
WORDS = ["algorithm=grpo", "model=tiny", "model.chat=true", "model.hidden_size=512", "model.intermediate_size=1536",
         "model.num_hidden_layers=8", "model.num_attention_heads=8", "model.max_position_embeddings=2048",
         "data=reverse", "data.train_batch_size=8", "sampler=vllm", "sampler.n=8", "sampler.kv_cache_gb=1",
         "data.max_response_length=400", "environment=python", "environment.path=free.py", "environment.name=Free",
         "environment.workers=1", "algorithm.min_group_std=0.1", "trainer.total_training_steps=4", "data.n_val=0",
         "engine.num_threads=1", "trainer.project_name=workers"]  # fmt: skip
WORKERS = 1.7


class Scripted(Generator):
    """Writes the calls of a plan: seconds of each turn, by the key of the episode."""

    def __init__(self, model: CausalLM, plans: dict[int, list[float]]) -> None:
        super().__init__(model, TorchSampler(), 2000)
        self.plans, self.turn, self.batches = plans, defaultdict[int, int](int), list[int]()

    def generate(self, requests: Sequence[Request], temperature: float) -> list[Turn]:
        self.batches.append(len(requests))
        found = []
        for request in requests:
            key = int(request.keys[0])
            left = self.plans[key][self.turn[key] :]
            self.turn[key] += 1
            call = f'<tool_call>{{"name": "wait", "arguments": {{"seconds": {(left or [0])[0]:.2f}}}}}</tool_call>'
            text = call if left else "so"
            ids = self.model.tokenizer(text, add_special_tokens=False).input_ids
            found.append(Turn([*ids, self.model.eos[0]], stop="end"))
        return found


def sampling_s(workers: int) -> list[float]:
    """Seconds of each step's sampling, after the first. No group has a signal, so that nothing is trained between."""
    name = f"of-{workers}"
    words = [*WORDS, f"sampler.n_gpus={workers}", f"trainer.experiment_name={name}"]
    subprocess.run([sys.executable, "-m", "launcher", "train", *words], check=True)
    events = events_of(Path("runs/workers") / name / "events.jsonl")
    return [event.metrics["timing_s/gen"] for event in events if isinstance(event, Step) and event.step > 1]


def compare_workers() -> int:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("free.py").write_text(FREE)
        one, two = sampling_s(1), sampling_s(2)
        os.chdir("/")
    ratio = median(one) / median(two)
    table = Table("vLLM workers", "s of sampling a step", title="64 episodes of 4 turns")
    table.add_row("1", f"{median(one):.1f}")
    table.add_row("2", f"{median(two):.1f}")
    table.add_row("ratio", f"{ratio:.2f}, at least {WORKERS}: {'pass' if ratio >= WORKERS else 'FAIL'}")
    Console().print(table)
    return 0 if ratio >= WORKERS else 1


def main() -> int:
    draw = random.Random(0)
    plans = {key: [round(draw.uniform(0, LONGEST_S), 2) for _ in range(TURNS)] for key in range(EPISODES)}
    words = ("<tool_call>", "</tool_call>")
    model = load_model(Scratch(chat=True, words=words, max_position_embeddings=4096), 0, torch.device("cpu"))
    encoder = Encoder(model.tokenizer, Files())
    model.stop_at(encoder.stop_tokens.ids)
    with tempfile.TemporaryDirectory() as folder:
        (file := Path(folder, "waits.py")).write_text(CLASS)
        environment = PythonEnvironment(path=str(file), name="Waits")
        row = environment.prompt(Row("rows.jsonl:1", (Message("user", "wait"),)))
        prompt = encoder.prompt_ids(row.prompt, row.template_args)
        generator = Scripted(model, plans)
        runner = EpisodeRunner(generator, environment, environment.sessions(), Bridge(encoder))
        begun = time.monotonic()
        episodes = runner.run([Request(prompt, np.array([*plans], np.uint64), row)], 1.0)
        wall = time.monotonic() - begun
        runner.close()
    longest, faults = max(map(sum, plans.values())), sum(bool(one.fault) for one in episodes)
    turns = sum(len(one.policy_turns) for one in episodes)
    passed = wall <= MOST * longest and not faults and turns == EPISODES * (TURNS + 1)
    table = Table("episodes", "turns", "longest chain, s", "all, s", "ratio", f"≤ {MOST}", "batches", "faults")
    table.add_row(str(len(episodes)), str(turns), f"{longest:.1f}", f"{wall:.1f}", f"{wall / longest:.2f}",
                  "pass" if passed else "FAIL", str(len(generator.batches)), str(faults))  # fmt: skip
    Console().print(table)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(compare_workers() if sys.argv[1:] == ["vllm"] else main())
