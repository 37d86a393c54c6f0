"""Chat templates of TRL and axolotl: after SFT with each, three samplers end answers at the same place.

A tiny model with random weights is trained on 64 rows, with a tokenizer that has the template's special tokens and
another EOS, as base models have. Then it answers: with our sampler, and from the saved folder, with nothing but its
files, with transformers' `generate` and with vLLM. The templates are read from the installed or downloaded packages.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR",
               "VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCH_COMPILE_DISABLE": "1"}  # fmt: skip

import numpy as np
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from launcher.config.resolve import resolve
from launcher.core.events import Event, Step
from launcher.core.problems import Problems
from launcher.data.files import Files
from launcher.engines.torch import assemble
from launcher.engines.torch.answer import Answerer, Sampling
from launcher.engines.torch.rollout.decode import Decoder
from launcher.engines.torch.rollout.generator import make_requests
from launcher.engines.torch.rollout.sampler import TorchSampler
from launcher.text.encoder import Encoder, Unwritable

SPECIAL = re.compile(
    r"<\|[^|<>\s{}']+\|>|<\|[a-z_]+>|<[a-z_]+\|>|</?[a-z_:]+>|<｜[^<>]+｜>|\[/?[A-Z_]+\]|\[\|[a-z_]+\|\]"
)
PIECES = r"\d|[^\W\d]+|\s|[^\w\s]"
WORDS = {"amber": "one", "birch": "two", "cedar": "one and two", "delta": "two twos", "ember": "two and three",
         "fjord": "three twos"}  # fmt: skip
ANSWERS = {" ".join([word] * 8): answer for word, answer in WORDS.items()}
"""By question, which some templates put behind 800 tokens of their own."""
ROWS = 64
SFT = ["algorithm=sft", "optim.lr=0.002", "trainer.val_before_train=false"]
STEPS = (60, 240, 960)
"""Of training; the next where the one before did not do."""
LONGEST = 24
"""Tokens of an answer that does not end."""


def templates(source: Path) -> Iterator[tuple[str, str]]:
    """Name and text of each template in a folder or a wheel; TRL's own variants for training are left out."""
    if source.is_dir():
        found = {file.stem: file.read_text(encoding="utf-8") for file in source.glob("*.jinja")}
    else:
        with ZipFile(source) as wheel:
            found = {Path(name).stem: wheel.read(name).decode() for name in wheel.namelist() if name.endswith(".jinja")}
    yield from sorted((name, text) for name, text in found.items() if not name.endswith("_training"))


def tokenizer_of(template: str, texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """A token for each word of the texts, and for each special token of the template."""
    special = list(dict.fromkeys(["<pad>", "<EOS>", "<unk>", "<BOS>", *SPECIAL.findall("\n".join([template, *texts]))]))
    words = sorted({word for text in texts for word in re.findall(PIECES, SPECIAL.sub(" ", text))} - {*special})
    tokenizer = Tokenizer(models.WordLevel({token: place for place, token in enumerate([*special, *words])}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PIECES), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<EOS>", unk_token="<unk>", bos_token="<BOS>",
        clean_up_tokenization_spaces=False, chat_template=template,
    )  # fmt: skip


def save_model(folder: Path, template: str) -> None:
    """A base model's folder: random weights, more rows in its embedding than the tokenizer has tokens."""
    bare = Encoder(tokenizer_of(template, ["".join(map(chr, range(32, 127)))]), Files())
    written = [bare.exchange([{"role": "user", "content": asked}], {"role": "assistant", "content": answer})
            for asked, answer in ANSWERS.items()]  # fmt: skip
    texts = [one.opening + one.answer for one in written]
    tokenizer = tokenizer_of(template, [*texts, *ANSWERS.values(), " \n"])
    config = AutoConfig.for_model(
        "llama", vocab_size=-(-len(tokenizer) // 64) * 64 + 64, hidden_size=64, intermediate_size=96, head_dim=32,
        num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=4096,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=tokenizer.bos_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_rows(folder: Path) -> Path:
    pairs = list(ANSWERS.items())
    rows = [dict(zip(("prompt", "response", "ground_truth"), (asked, answer, answer), strict=True))
            for asked, answer in (pairs[place % len(pairs)] for place in range(ROWS))]  # fmt: skip
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def train(folder: Path, rows: Path, *words: str) -> tuple[Path, Mapping[str, float]]:
    """The saved policy, and the last step's metrics. Raises `Problems`."""
    events = list[Event]()
    run = resolve([
        "model=hf", "data=files", f"data.train_files={rows}", f"data.val_files={rows}", "data.max_prompt_length=3000",
        f"data.max_response_length={LONGEST}", "data.train_batch_size=8", "reward=exact", *words,
    ])  # fmt: skip
    parts = assemble.build_parts(run, torch.device("cpu"), None, folder / "refused.jsonl")
    assemble.build_training(run, parts, folder, 0, events.append, lambda: False, lambda: None).train()
    last = [event.metrics for event in events if isinstance(event, Step)][-1]
    return max((folder / "checkpoints").glob("*/policy")), last


# ---- three samplers, one question: which tokens does each write for a prompt?

Written = list[list[int]]


def by_transformers(folder: Path, prompts: Sequence[list[int]]) -> Written:
    model = AutoModelForCausalLM.from_pretrained(folder)
    return [model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), max_new_tokens=LONGEST,
                           do_sample=False)[0, len(ids) :].tolist() for ids in prompts]  # fmt: skip


def by_vllm(folder: Path, prompts: Sequence[list[int]]) -> Written:
    from vllm import LLM, SamplingParams  # noqa: PLC0415  it is in an environment of its own

    llm = LLM(model=str(folder), dtype="float32", enforce_eager=True, max_model_len=4096, max_num_seqs=8,
              kv_cache_memory_bytes=2**26)  # fmt: skip
    found = llm.generate([{"prompt_token_ids": ids} for ids in prompts],
                         SamplingParams(temperature=0, max_tokens=LONGEST), use_tqdm=False)  # fmt: skip
    llm.llm_engine.engine_core.shutdown()
    return [list(one.outputs[0].token_ids) for one in found]


@dataclass(frozen=True)
class Found:
    right: int
    """Of the questions."""
    taught: bool
    """Each answer is one of those that were taught, if of another question."""
    stops: str
    ours: Written
    others: Mapping[str, Written]

    @property
    def line(self) -> str:
        right = "right" if self.right == len(ANSWERS) else f"{self.right}/{len(ANSWERS)} right"
        same = [name if other == self.ours else f"{name} differs" for name, other in self.others.items()]
        return f"{right:9} {'equal: ' + ', '.join(same):30} {self.stops}"

    @property
    def good(self) -> bool:
        return self.taught and all(other == self.ours for other in self.others.values())


def answers(saved: Path, *others: Callable[[Path, Sequence[list[int]]], Written]) -> Found:
    """What each sampler writes for the questions, greedily."""
    answerer = Answerer(saved, Files(), Sampling())
    prompts = [answerer.encoder.prompt_ids(asked) for asked in ANSWERS]
    decoder = Decoder(answerer.model, TorchSampler(), LONGEST)
    ours = decoder.answer(make_requests(prompts, np.zeros(len(prompts), np.uint64), 0.0))
    texts = [text.strip() for text in decoder.texts(ours)]
    # some templates open an answer with more than they open a prompt with
    right = [text.endswith(answer) for text, answer in zip(texts, ANSWERS.values(), strict=True)]
    taught = all(one or text in ANSWERS.values() for one, text in zip(right, texts, strict=True))
    stops = " ".join(answerer.model.tokenizer.convert_ids_to_tokens(answerer.model.eos))
    found = {other.__name__.removeprefix("by_"): other(saved, prompts) for other in others}
    return Found(sum(right), taught, stops, [one.turns[0].tokens for one in ours], found)


def tried(folder: Path, template: str) -> Found:
    save_model(folder / "model", template)
    rows = write_rows(folder)
    for steps in STEPS:
        words = [f"model.path={folder}/model", f"trainer.total_training_steps={steps}", *SFT]
        saved, _ = train(folder / str(steps), rows, *words)
        if answers(saved).right == len(ANSWERS):
            break
    return answers(saved, by_transformers, by_vllm)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", nargs="+", type=Path, help="folders of templates, and wheels")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    bad = 0
    for source in asked.sources:
        for name, template in templates(source):
            with tempfile.TemporaryDirectory() as folder, redirect_stderr(io.StringIO()):
                try:
                    found = tried(Path(folder), template)
                    line, good = found.line, found.good
                except (Problems, Unwritable) as error:
                    line, good = f"refused: {error}", False
            bad += not good
            print(f"{'trl' if source.is_dir() else source.name.split('-')[0]:8} {name:24} {line}", flush=True)
    print(f"{bad} of the templates have answers that are wrong or end differently" if bad else "all end alike")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
