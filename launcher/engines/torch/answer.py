"""Answers of a model outside a run: written with the chat template, sampled and ended as in training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers.decoders import DecodeStream
from transformers.utils import logging as transformers_logging

from launcher.core.problems import Problem, Problems
from launcher.engines.torch.model.load import load_model
from launcher.engines.torch.rollout.decode import Decoder
from launcher.engines.torch.rollout.random_streams import stream_keys
from launcher.engines.torch.rollout.sampler import TorchSampler
from launcher.models.pretrained import Pretrained
from launcher.spec.data import Dataset, Text
from launcher.text.encoder import Encoder, Unwritable

USUAL = 512
"""Tokens of an answer where nobody gives a limit."""


@dataclass(frozen=True)
class Sampling:
    """How answers are drawn."""

    n: int = 1
    """Answers to each prompt."""
    temperature: float = 0.0
    """0 takes the likeliest token each time."""
    top_p: float = 1.0
    top_k: int = -1
    max_tokens: int | None = None
    """Tokens of an answer; None: 512, or what the model's positions leave."""
    seed: int = 0


@dataclass(frozen=True)
class Reply:
    """One answer. `truncated` where it was cut at the maximum length."""

    text: str
    tokens: int
    truncated: bool


class Answerer:
    """A loaded model that answers prompts. On a GPU it is loaded as bfloat16, on a CPU as float32."""

    def __init__(self, folder: Path, data: Dataset, sampling: Sampling) -> None:
        """`data` says whether prompts are written with the chat template. Raises `Problems`."""
        transformers_logging.disable_progress_bar()
        found = torch.accelerator.current_accelerator(check_available=True)
        on_gpu = found is not None and found.type != "mps"  # as in training
        device = found if found is not None and on_gpu else torch.device("cpu")
        settings = Pretrained(path=str(folder), dtype="bfloat16" if on_gpu else "float32")
        self.model = load_model(settings, sampling.seed, device)
        self.encoder = Encoder(self.model.tokenizer, data)
        self.sampling = sampling

    def answers(self, prompts: Sequence[Text], first: int = 0) -> list[list[Reply]]:
        """`sampling.n` answers to each prompt. Equal seeds and numbers of prompts, counted from `first`, give equal
        answers. Raises `Problems` for prompts that cannot be written or are too long."""
        return self._answers(prompts, first, None)

    def stream(self, prompt: Text, number: int, say: Callable[[str], None]) -> Reply:
        """One answer, whose text is given to `say` as it is written."""
        pieces, eos = DecodeStream(skip_special_tokens=False), set(self.model.eos)

        def heard(token: int) -> None:
            piece = None if token in eos else pieces.step(self.model.tokenizer.backend_tokenizer, token)
            if piece:
                say(piece)

        return self._answers([prompt], number, heard)[0][0]

    def _answers(self, prompts: Sequence[Text], first: int, heard: Callable[[int], None] | None) -> list[list[Reply]]:
        asked, n = [self._ids(prompt) for prompt in prompts], 1 if heard else self.sampling.n
        sampler = TorchSampler(top_p=self.sampling.top_p, top_k=self.sampling.top_k, max_num_seqs=64)
        decoder = Decoder(self.model, sampler, self._room(max(map(len, asked))))
        decoder.on_token = heard
        keys = stream_keys(self.sampling.seed, 0, range(first, first + len(asked)), n)
        found = decoder.sample(asked, n, keys, self.sampling.temperature)
        replies = [
            Reply(text, len(answer.tokens), answer.truncated)
            for text, answer in zip(decoder.texts(found), found, strict=True)
        ]
        return [replies[start : start + n] for start in range(0, len(replies), n)]

    def _ids(self, prompt: Text) -> list[int]:
        try:
            ids = self.encoder.prompt_ids(prompt)
        except Unwritable as error:
            raise Problems(Problem("prompt", str(error))) from error
        if not ids:
            raise Problems(Problem("prompt", "has no tokens", "use a text"))
        return ids

    def _room(self, longest: int) -> int:
        """Tokens of an answer to a prompt of `longest` tokens."""
        positions = getattr(self.model.base.config.get_text_config(), "max_position_embeddings", None)
        asked = self.sampling.max_tokens
        room = positions - longest if positions else asked or USUAL
        if room < (asked or 1):
            got = f"a prompt has {longest} tokens, and the model has {positions} positions"
            fix = f"use --max-tokens {room}" if room > 0 else "use a shorter prompt"
            raise Problems(Problem("--max-tokens", got, fix))
        return asked or min(USUAL, room)
