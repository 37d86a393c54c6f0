"""Wrappers of transformers models for training: token scores of a language model, and a critic's values."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.modeling_layers import GradientCheckpointingLayer

from launcher.engines.torch.model import head
from launcher.engines.torch.model.attention import NAME, NO_MASK
from launcher.engines.torch.model.head import TokenScores
from launcher.engines.torch.model.packing import Packed, pack
from launcher.models import texts
from launcher.spec.algorithm import Batch

log = logging.getLogger(__name__)


class Network(nn.Module):
    """Base of language model and critic: a decoder over packed sequences, in a number format."""

    module: PreTrainedModel
    """The module that is trained and saved."""

    def __init__(self, base: PreTrainedModel, decoder: PreTrainedModel, mixed: bool) -> None:
        super().__init__()
        self.device = base.device  # where it computes; its weights may be offloaded
        self.version = 0
        """Optimizer steps that the weights have taken; a holder of a copy compares it to see that they changed."""
        self._base_and_decoder = base, decoder  # in a tuple, so that torch does not list their weights a second time
        self.supports_packing, self.mixed = _supports_packing(base), mixed
        if not self.supports_packing:
            log.warning("%s mixes packed sequences; it computes equal lengths together", type(base).__name__)

    @property
    def base(self) -> PreTrainedModel:
        """The transformers model, without the wrapper of its adapters."""
        return self._base_and_decoder[0]

    def layers(self) -> list[nn.Module]:
        """The decoder layers."""
        names = set(self.base._no_split_modules or ())
        return [  # FSDP2 makes a subclass of each part's class
            part for part in self.base.modules() if names & {kind.__name__ for kind in type(part).__mro__}
        ]

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """With `mixed`, compute in bfloat16; the weights keep their format."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.mixed):
            yield

    @property
    def shares_prompts(self) -> bool:
        """Whether prompts shared by several answers are computed once. Not in float64: transformers' norms still round
        to float32 there, and a gradient that is rounded once instead of per answer differs in the seventh digit."""
        return self.supports_packing and next(self.parameters()).dtype != torch.float64

    def prepare_update(self, *, dropout: bool) -> None:
        """Set training mode; without `dropout` evaluation mode, in which layers are still recomputed in the backward
        pass where that is enabled, which transformers does in training mode only."""
        self.train(dropout)
        for layer in self.modules():
            if isinstance(layer, GradientCheckpointingLayer) and layer.gradient_checkpointing:
                layer.training = True  # not the modules in it
                if getattr(layer._gradient_checkpointing_func, "func", None) is not _in_mode_of_parts:
                    layer._gradient_checkpointing_func = partial(_in_mode_of_parts, layer._gradient_checkpointing_func)

    def pack(self, batch: Batch) -> Packed:
        return pack(batch, share=self.shares_prompts, ragged=self.supports_packing)

    def hidden(self, packed: Packed) -> Tensor:
        """[M, H] last hidden states before the predicted tokens."""
        if self.supports_packing:
            return _run_packed(self._base_and_decoder[1], packed).last_hidden_state[0].index_select(0, packed.source)
        return _run_equal_lengths(self._base_and_decoder[1], packed, "last_hidden_state")


class CausalLM(Network):
    """A causal language model with its tokenizer, on one device; adapters wrap its `base`."""

    def __init__(
        self, module: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, mixed: bool = False, *,
        base: PreTrainedModel | None = None, keep_base: bool = False, published: Mapping[str, bytes] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(base or module, cast("Any", base or module).get_decoder(), mixed)
        self.module, self.tokenizer, self.has_adapters = module, tokenizer, base is not None
        self.published = published or {}  # the small files of the model's folder
        self.keep_base = keep_base  # save the weights under the adapters, too
        self.has_linear_head = _has_linear_head(self.base)
        self.vocabulary = max(tokenizer.get_vocab().values()) + 1
        """Number of the tokenizer's ids. An output layer may have more rows (Qwen: 267), which are never sampled here.
        Log-probabilities are over all rows, so that training lowers those of the extra rows, which vLLM and
        transformers can sample. Sampling's differ by the extra rows' share, nearly 0 in a trained model."""

    @property
    def eos(self) -> list[int]:
        """End-of-sequence tokens; without those that a configuration names and the tokenizer lacks."""
        ids = self.base.generation_config.eos_token_id if self.base.generation_config else None
        tokens = {self.tokenizer.eos_token_id, *(ids if isinstance(ids, list) else [ids])} - {None}
        return sorted(number for number in cast("set[int]", tokens) if 0 <= number < self.vocabulary)

    def stop_at(self, ids: Sequence[int]) -> None:
        """End answers at these tokens, too; saved with the model, so that others also stop there."""
        config = self.base.generation_config
        config.eos_token_id = sorted({*self.eos, *ids})

    def write_texts(self, folder: Path) -> None:
        """Write the small files beside the weights: unchanged those that the model came with, else transformers'."""
        if texts.TOKENIZER not in self.published:
            self.tokenizer.save_pretrained(folder)
        self.base.generation_config.save_pretrained(folder)
        texts.write_saved(folder, self.published)

    def forward(self, packed: Packed, temperature: float = 1.0, entropy: bool = False) -> TokenScores:
        """[B, T] log-probability of each predicted token, and entropy if requested; 0 elsewhere."""
        with self.autocast():
            linear_head = self.has_linear_head
            weight = cast("nn.Linear", self.base.get_output_embeddings()).weight if linear_head else None
            hidden = self.hidden(packed) if linear_head else self.logits(packed)
            scores = head.token_scores(hidden, weight, packed.target, temperature, entropy=entropy)
        return TokenScores(*map(packed.unpack, scores))

    def logits(self, packed: Packed) -> Tensor:
        """[M, V] logits of the predicted tokens."""
        if self.supports_packing:
            return _run_packed(self.base, packed, logits_to_keep=packed.source).logits[0]
        return _run_equal_lengths(self.base, packed, "logits")


class CriticNetwork(Network):
    """Value model: a decoder with one output, which predicts an answer's reward at each of its tokens."""

    def __init__(self, decoder: PreTrainedModel, mixed: bool = False) -> None:
        super().__init__(decoder, decoder, mixed)
        self.module = decoder
        width = decoder.config.get_text_config().hidden_size
        self.head = nn.Linear(width, 1, device=decoder.device, dtype=decoder.dtype)
        nn.init.zeros_(self.head.weight)  # zero-initialised: values start at 0
        nn.init.zeros_(self.head.bias)

    def forward(self, packed: Packed) -> Tensor:
        """[B, T] value before each predicted token was chosen; 0 elsewhere. Not in bfloat16, which has eight bits."""
        with self.autocast():
            hidden = self.hidden(packed)
        exact = hidden.dtype if hidden.dtype == torch.float64 else torch.float32
        value = linear(hidden.to(exact), self.head.weight.to(exact), self.head.bias.to(exact))
        return packed.unpack(value[:, 0])


def _in_mode_of_parts(checkpoint: Callable[..., Any], forward: partial[Any], *args: Any) -> Any:
    """Checkpoint a layer so that it computes in training mode only where the modules in it are in that mode."""
    layer: nn.Module = forward.args[0]

    def compute(*args: Any) -> Any:
        layer.training = any(part.training for part in layer.children())
        try:
            return forward(*args)
        finally:
            layer.training = True

    return checkpoint(compute, *args)


def _run_packed(module: nn.Module, packed: Packed, **kwargs: Any) -> Any:
    return module(
        input_ids=packed.ids, position_ids=packed.positions, attention_mask=NO_MASK, use_cache=False,
        layout=packed.layout, **kwargs,
    )  # fmt: skip


def _run_equal_lengths(module: nn.Module, packed: Packed, output: str) -> Tensor:
    """[M, ...] the output before the predicted tokens, where the sequences of each length are computed together."""
    outputs, start = list[Tensor](), 0
    for call in packed.layout.calls:
        size = call.count * call.length
        ids = packed.ids[0, start : start + size].view(call.count, call.length)
        outputs.append(getattr(module(input_ids=ids, use_cache=False), output).flatten(0, 1))
        start += size
    return torch.cat(outputs)[packed.source]


@torch.no_grad()
def _supports_packing(module: PreTrainedModel) -> bool:
    """Whether packed sequences are computed as if they were separate. Measured, not looked up."""
    config = module.config.get_text_config()
    layers = getattr(config, "layer_types", None) or ()
    if module.config._attn_implementation != NAME or "chunked_attention" in layers:  # chunks are longer than we measure
        return False
    module.eval()
    sequences = [list(range(3, 7)), list(range(7, 12)), [*range(3, 6), 11, 12]]
    rows = [torch.tensor(row, device=module.device) % config.vocab_size for row in sequences]
    width = max(map(len, rows))
    batch = Batch(
        tokens=torch.stack([nn.functional.pad(row, (0, width - len(row))) for row in rows]),
        length=torch.tensor([len(row) for row in rows], device=module.device),
        mask=torch.stack([(torch.arange(width, device=module.device) < len(row)).double() for row in rows]),
        group=torch.tensor([0, 1, 0], device=module.device),
    )
    batch.mask[:, :3] = 0  # rows 0 and 2 share a prompt of three tokens
    packed = pack(batch)
    try:
        output = _run_packed(module, packed)[0][0]
    except (RuntimeError, TypeError):  # the model reads the mask itself, and NO_MASK does not fit
        return False
    if output.shape[0] != packed.ids.shape[1]:
        return False
    single = [module(input_ids=row[None], use_cache=False)[0][0] for row in rows]
    expected = torch.stack([single[row][column - 1] for row, column in zip(packed.row, packed.column, strict=True)])
    return _is_close(output[packed.source], expected)


@torch.no_grad()
def _has_linear_head(module: PreTrainedModel) -> bool:
    """Whether its logits are its decoder's output times one matrix."""
    layer = module.get_output_embeddings()
    capped = getattr(module.config.get_text_config(), "final_logit_softcapping", None)  # invisible at small logits
    if type(layer) is not nn.Linear or layer.bias is not None or capped:
        return False
    decoder = cast("Any", module).get_decoder()
    if decoder is module:  # it has no decoder of its own (llama4)
        return False
    ids = torch.arange(3, 9, device=module.device)[None] % module.config.get_text_config().vocab_size
    logits = linear(decoder(input_ids=ids, use_cache=False).last_hidden_state, layer.weight)
    expected = module(input_ids=ids, use_cache=False).logits
    return logits.shape == expected.shape and _is_close(logits, expected)


def _is_close(output: Tensor, expected: Tensor) -> bool:
    tolerance = 0.1 if output.dtype in (torch.bfloat16, torch.float16) else 1e-3
    expected = expected.float()
    return bool((output.float() - expected).abs().max() <= tolerance * expected.abs().max())
