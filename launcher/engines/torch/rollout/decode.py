"""The built-in decode loop: prompts are prefilled once for all their answers, and finished answers leave the batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from inspect import signature

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DynamicCache

from launcher.core.machine import free_memory_bytes
from launcher.core.problems import Problem, Problems
from launcher.engines.torch.model.network import CausalLM
from launcher.engines.torch.parallel import world
from launcher.engines.torch.parallel.strategy import Parallel
from launcher.engines.torch.rollout import random_streams
from launcher.engines.torch.rollout.generator import Generator, Request
from launcher.engines.torch.rollout.kv_cache import Prefixes, empty_cache
from launcher.spec.episode import Turn
from launcher.spec.sampler import Sampler

BLOCK = 512  # tokens of the vocabulary that are summed together
DROP = 7 / 8  # share of unfinished rows at which finished ones are removed: removal copies the cache
SMALL = 2**21  # multiplications of a layer's largest matrix under which a second thread costs more than it gives


class Decoder(Generator):
    """Samples answers from the model under training, without a copy of its weights."""

    def __init__(self, model: CausalLM, sampler: Sampler, max_new: int, parallel: Parallel | None = None) -> None:
        super().__init__(model, sampler, max_new)
        self.parallel = parallel or Parallel()
        self.eos = torch.tensor(model.eos, device=model.device)
        host = free_memory_bytes() / 4 / world.SIZE  # a plan does not estimate it; on a CPU it does
        self.prefixes = Prefixes(sampler.max_num_seqs, math.inf if model.device.type == "cpu" else host)
        self.on_token: Callable[[int], None] | None = None  # called with each token of a single answer

    def forget(self, key: np.uint64) -> None:
        self.prefixes.forget(int(key))

    @torch.no_grad()
    def generate(self, requests: Sequence[Request], temperature: float) -> list[Turn]:
        if fault := self.fault():
            raise Problems(Problem("model.path", fault, "use algorithm=sft", "not-supported"))
        self.model.eval()
        answers: dict[int, list[Turn]] = {}
        rows = sum(len(request.keys) for request in requests)
        with self.parallel.summon_full_params(self.model), self.model.autocast(), self._threads(rows):
            for part in self._parts(requests):
                generated = iter(self._sample([requests[place] for place in part], temperature))
                answers |= {place: [next(generated) for _ in requests[place].keys] for place in part}
        return [turn for place in range(len(requests)) for turn in answers[place]]

    @contextmanager
    def _threads(self, rows: int) -> Iterator[None]:
        """One CPU thread while all matrices are small, where more threads would only add synchronisation."""
        threads = torch.get_num_threads()
        work = max((weight.numel() for layer in self.model.layers() for weight in layer.parameters()), default=SMALL)
        if self.model.device.type == "cpu" and min(rows, self.sampler.max_num_seqs) * work < SMALL:
            torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)

    def fault(self) -> str:
        """Why the model cannot be decoded: without `past_key_values` it would read single tokens only."""
        cached = "past_key_values" in signature(self.model.base.forward).parameters
        return (
            "" if cached else f"{type(self.model.base).__name__} keeps a cache of its own kind, so it gives no answers"
        )

    def _parts(self, requests: Sequence[Request]) -> Iterator[list[int]]:
        """Indices of the requests, prompts of similar length together, as many as may be answered at a time."""
        by_length = sorted(range(len(requests)), key=lambda place: len(requests[place].prompt))
        largest = max((len(request.keys) for request in requests), default=1)
        size = max(self.sampler.max_num_seqs // largest, 1)
        for start in range(0, len(by_length), size):
            yield by_length[start : start + size]

    def _sample(self, requests: Sequence[Request], temperature: float) -> list[Turn]:
        kv_cache, keys = empty_cache(self.model.base.config), np.concatenate([request.keys for request in requests])
        logits, mask = self._prefill(requests, kv_cache)
        owner = [place for place, request in enumerate(requests) for _ in request.keys]
        prompt = torch.tensor(owner, device=mask.device)  # [R] which prompt each row answers
        logits, mask = logits[prompt], mask[prompt]  # [R, V], [R, L]
        kv_cache.reorder_cache(prompt)
        alive = torch.arange(len(prompt), device=mask.device)  # [R] which answer each row writes
        going = torch.ones_like(alive, dtype=torch.bool)  # [R] whether it still does
        answered = np.array([requests[place].answered for place in owner])  # [R] tokens of the answer in the prompt
        room = self.max_new - torch.from_numpy(answered).to(mask.device)  # [R]
        written = torch.full((len(alive), int(room.max())), -1, device=mask.device)
        for t in range(written.shape[1]):
            token = self._next_tokens(logits, keys, answered + t, temperature)  # [R]
            written[alive, t] = token.where(going, -1)
            if self.on_token:
                self.on_token(int(token[0]))
            going = going & torch.isin(token, self.eos, invert=True) & (room > t + 1)
            remaining = int(going.sum())
            if remaining <= DROP * len(going):
                self._keep_kv([requests[owner[row]] for row in alive.tolist()], written[alive], going, mask, kv_cache)
                if not remaining:
                    break
                kept = going.cpu().numpy()
                alive, token, mask, room = alive[going], token[going], mask[going], room[going]
                keys, answered = keys[kept], answered[kept]
                kv_cache.reorder_cache(going.nonzero()[:, 0])  # all caches have it, unlike batch_select_indices
                going = going[going]
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
            logits = self._forward(token[:, None], mask, kv_cache)
        answers = ([token for token in row if token >= 0] for row in written.tolist())
        return [Turn(tokens, stop="end" if tokens[-1] in self.model.eos else "length") for tokens in answers]

    def _keep_kv(
        self, requests: Sequence[Request], written: Tensor, going: Tensor, mask: Tensor, kv_cache: DynamicCache
    ) -> None:
        """Keep the keys and values of rows that are no longer `going` [R], where they are turns of an episode: those of
        the prompt and of the answer without its last token."""
        for row in (~going).nonzero()[:, 0].tolist():
            if (request := requests[row]).goes_on:
                ids = request.prompt + [token for token in written[row].tolist() if token >= 0][:-1]
                columns = mask[row].nonzero()[: len(ids), 0]  # a finished row is extended until it is removed
                self.prefixes.keep(int(request.keys[0]), ids, kv_cache, row, columns)

    def _prefill(self, requests: Sequence[Request], kv_cache: DynamicCache) -> tuple[Tensor, Tensor]:
        """[P, V] logits after each prompt, and the [P, L] mask of its tokens: those that earlier turns have computed,
        then the rest, both padded on the left."""
        keys, prompts = [int(request.keys[0]) for request in requests], [request.prompt for request in requests]
        computed = self.prefixes.take(keys, prompts, kv_cache, self.model.device)
        prompts = [prompt[start:] for prompt, start in zip(prompts, computed, strict=True)]
        longest, earlier = max(map(len, prompts)), max(computed)
        pad = self.model.tokenizer.pad_token_id
        ids = torch.tensor([[pad] * (longest - len(prompt)) + prompt for prompt in prompts], device=self.model.device)
        mask_rows = [
            [0] * (earlier - start) + [1] * start + [0] * (longest - len(prompt)) + [1] * len(prompt)
            for start, prompt in zip(computed, prompts, strict=True)
        ]
        mask = torch.tensor(mask_rows, device=self.model.device)
        return self._forward(ids, mask, kv_cache), mask

    def _forward(self, ids: Tensor, mask: Tensor, kv_cache: DynamicCache) -> Tensor:
        """[R, V] logits after the last of the `ids` [R, L]; `mask` [R, cached + L] leaves out padding."""
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        return self.model.base(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=kv_cache, use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]  # fmt: skip

    def _next_tokens(self, logits: Tensor, keys: np.ndarray, t: np.ndarray, temperature: float) -> Tensor:
        """[R] token `t` [R] of each row's answer, by the inverse of its cumulative probability."""
        logits = logits[:, : self.model.vocabulary]
        if temperature == 0:
            return logits.argmax(-1)
        probability = (logits.float() / temperature).softmax(-1)  # [R, V]
        probability = _keep_top_k_top_p(probability, self.sampler.top_k, self.sampler.top_p)
        u = torch.from_numpy(random_streams.uniform(keys, t)).to(probability.device)[:, None]  # [R, 1]
        return sample_tokens(probability, u)


def sample_tokens(probability: Tensor, u: Tensor) -> Tensor:
    """[R] first token at which the cumulative [R, V] `probability` passes the share `u` [R, 1] of its sum.

    First the block of tokens, then the token in it: sums in float64 over a large vocabulary would cost more than
    the model's last layer.
    """
    rows = probability.shape[0]
    blocks = nn.functional.pad(probability, (0, -probability.shape[1] % BLOCK)).view(rows, -1, BLOCK)
    ends = blocks.sum(-1).double().cumsum(-1)  # [R, V / BLOCK]
    goal = _below(u * ends[:, -1:], ends[:, -1:])
    block = torch.searchsorted(ends, goal, right=True).clamp(max=ends.shape[1] - 1)  # [R, 1]; past the end if NaN
    start = torch.where(block > 0, ends.gather(1, (block - 1).clamp(min=0)), 0.0)
    share = (goal - start) / (ends.gather(1, block) - start)
    inside = blocks[torch.arange(rows, device=block.device), block[:, 0]].double().cumsum(-1)  # [R, BLOCK]
    token = torch.searchsorted(inside, _below(share * inside[:, -1:], inside[:, -1:]), right=True)
    return (block * BLOCK + token)[:, 0].clamp(max=probability.shape[1] - 1)


def _below(x: Tensor, top: Tensor) -> Tensor:
    """`x`, limited to below `top`: rounding must not select a token after the last with a probability."""
    return x.minimum(torch.nextafter(top, torch.zeros_like(top)))


def _keep_top_k_top_p(probability: Tensor, top_k: int, top_p: float) -> Tensor:
    """[R, V] with 0 outside the `top_k` most likely tokens and outside the smallest set with probability `top_p`."""
    if top_k > 0 and top_k < probability.shape[-1]:
        threshold = probability.topk(top_k, -1).values[:, -1:]
        probability = probability.masked_fill(probability < threshold, 0)
    if top_p < 1:
        ranked, token = probability.sort(dim=-1, descending=True, stable=True)  # of equal ones the first
        mass_before = ranked.cumsum(-1) - ranked
        reached = mass_before >= top_p * ranked.sum(-1, keepdim=True)
        probability = probability.masked_fill(reached.gather(-1, token.argsort(-1)), 0)
    return probability
