"""Answers of a model outside a run; prompts are written, and answers sampled and ended, as in training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from tokenizers.decoders import DecodeStream
from transformers.utils import logging as transformers_logging

from launcher.core.problems import Problem, Problems
from launcher.engines.torch.model.load import load_model
from launcher.engines.torch.rollout.decode import Decoder
from launcher.engines.torch.rollout.generator import make_requests
from launcher.engines.torch.rollout.random_streams import stream_keys
from launcher.engines.torch.rollout.sampler import TorchSampler
from launcher.models.pretrained import Pretrained
from launcher.spec.data import Dataset, Row
from launcher.text.encoder import Encoder, Unwritable

USUAL = 512
"""Most tokens of an answer where no limit is given."""


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
    """Tokens of an answer; None: `usual_tokens`, or what the model's positions leave."""
    usual_tokens: int | None = None
    """Most tokens of the answers of the model's run; None: 512."""
    seed: int = 0


@dataclass(frozen=True)
class Reply:
    """One answer. `truncated` where it was cut at the maximum length."""

    text: str
    tokens: int
    truncated: bool


class Answerer:
    """A loaded model that answers prompts. On a GPU it is loaded as bfloat16, on a CPU as float32."""

    def __init__(self, folder: Path, data: Dataset, sampling: Sampling, *, trust_remote_code: bool = False) -> None:
        """`data` says whether prompts are written with the chat template. Raises `Problems`."""
        transformers_logging.disable_progress_bar()
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        on_gpu = accelerator is not None and accelerator.type != "mps"  # as in training
        device = accelerator if accelerator is not None and on_gpu else torch.device("cpu")
        dtype: Literal["bfloat16", "float32"] = "bfloat16" if on_gpu else "float32"
        settings = Pretrained(path=str(folder), dtype=dtype, trust_remote_code=trust_remote_code)
        self.model = load_model(settings, sampling.seed, device)
        self.encoder = Encoder(self.model.tokenizer, data)
        self.model.stop_at(self.encoder.stop_tokens.ids)
        self.sampling = sampling

    def check(self, prompts: Sequence[Row]) -> None:
        """Raises `Problems` with all prompts that cannot be written or leave no room for an answer."""
        problems = [problem for prompt in prompts if (problem := self._fault(prompt))]
        if problems:
            raise Problems(problems)

    def answers(self, prompts: Sequence[Row], first: int = 0) -> list[list[Reply]]:
        """`sampling.n` answers to each prompt, which must pass `check`. Equal seeds and numbers of prompts, counted
        from `first`, give equal answers. Prompts with equal room for an answer are answered together, so that a long
        one does not shorten the answers to the others."""
        encoded, n = [self._ids(prompt) for prompt in prompts], self.sampling.n
        keys = stream_keys(self.sampling.seed, 0, range(first, first + len(encoded)), n).reshape(len(encoded), n)
        by_room: dict[int, list[int]] = {}
        for place, ids in enumerate(encoded):
            by_room.setdefault(self._room(len(ids)), []).append(place)
        replies: dict[int, list[Reply]] = {}
        for room, places in by_room.items():
            generated = iter(self._sample([encoded[place] for place in places], room, keys[places].ravel()))
            replies |= {place: [next(generated) for _ in range(n)] for place in places}
        return [replies[place] for place in range(len(encoded))]

    def stream(self, prompt: Row, number: int, say: Callable[[str], None]) -> Reply:
        """One answer, whose text is given to `say` as it is written. Raises `Problems` as `check` does."""
        self.check([prompt])
        pieces, eos = DecodeStream(skip_special_tokens=False), set(self.model.eos)

        def on_token(token: int) -> None:
            piece = None if token in eos else pieces.step(self.model.tokenizer.backend_tokenizer, token)
            if piece:
                say(piece)

        ids = self._ids(prompt)
        keys = stream_keys(self.sampling.seed, 0, [number], 1)
        return self._sample([ids], self._room(len(ids)), keys, on_token)[0]

    def _sample(
        self, prompts: list[list[int]], room: int, keys: np.ndarray, on_token: Callable[[int], None] | None = None
    ) -> list[Reply]:
        sampler = TorchSampler(top_p=self.sampling.top_p, top_k=self.sampling.top_k, max_num_seqs=64)
        decoder = Decoder(self.model, sampler, room)
        decoder.on_token = on_token
        episodes = decoder.answer(make_requests(prompts, keys), self.sampling.temperature)
        texts = decoder.texts(episodes)
        return [
            Reply(text, len(one.turns[-1].tokens), one.turns[-1].stop == "length")
            for text, one in zip(texts, episodes, strict=True)
        ]

    def _ids(self, prompt: Row) -> list[int]:
        return self.encoder.prompt_ids(prompt.prompt, prompt.template_args)

    def _fault(self, prompt: Row) -> Problem | None:
        try:
            ids = self._ids(prompt)
        except Unwritable as error:
            return Problem(prompt.where, str(error))
        if not ids:
            return Problem(prompt.where, "has no tokens", "use a text")
        left = self._positions_left(len(ids))
        if left >= (self.sampling.max_tokens or 1):
            return None
        got = f"has {len(ids)} tokens, and the model has {len(ids) + left} positions"
        return Problem(prompt.where, got, f"use --max-tokens {left}" if left > 0 else "use a shorter prompt")

    def _room(self, length: int) -> int:
        """Tokens of an answer to a prompt of `length` tokens."""
        return self.sampling.max_tokens or min(self.sampling.usual_tokens or USUAL, self._positions_left(length))

    def _positions_left(self, length: int) -> int:
        """Positions after a prompt of `length` tokens; of a model without a limit, more than any answer takes."""
        return (getattr(self.model.base.config.get_text_config(), "max_position_embeddings", None) or 2**40) - length
