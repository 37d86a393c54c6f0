"""A transformers model: how it is loaded, and how it is asked for log-probabilities."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from launcher.checkpoints import MANIFEST
from launcher.engines.torch.attention import NAME, NO_MASK
from launcher.engines.torch.packing import Packed
from launcher.models.pretrained import Pretrained, weights_of
from launcher.models.scratch import Scratch
from launcher.problems import Problems
from launcher.spec.model import Model

ENTROPY_LOGITS = 2**24  # logits whose probabilities are in memory at a time

log = logging.getLogger(__name__)


class CausalLM:
    """A causal language model with its tokenizer, on one device."""

    def __init__(self, module: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
        self.module, self.tokenizer = module, tokenizer
        self.packs = _packs(module)
        if not self.packs:
            log.warning("%s mixes packed sequences; it computes equal lengths together", type(module).__name__)

    @property
    def device(self) -> torch.device:
        return self.module.device

    @property
    def eos(self) -> list[int]:
        """Tokens that end an answer."""
        ids = self.module.generation_config.eos_token_id if self.module.generation_config else None
        found = {self.tokenizer.eos_token_id, *(ids if isinstance(ids, list) else [ids])} - {None}
        return sorted(cast("set[int]", found))

    def logits(self, packed: Packed) -> Tensor:
        """[M, V] logits of the predicted tokens, in the packing's order."""
        if self.packs:
            return self.module(
                input_ids=packed.ids, position_ids=packed.positions, attention_mask=NO_MASK, use_cache=False,
                segments=packed.segments, logits_to_keep=packed.source,
            ).logits[0]  # fmt: skip
        parts, start = [], 0
        for count, length in packed.segments:
            ids = packed.ids[0, start : start + count * length].view(count, length)
            parts.append(self.module(input_ids=ids, use_cache=False).logits.flatten(0, 1))  # [count * length, V]
            start += count * length
        return torch.cat(parts)[packed.source]

    def logp(self, packed: Packed, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """[B, T] log-probability of each predicted token, and the [M, V] logits it came from."""
        logits = self.logits(packed)
        if logits.dtype in (torch.bfloat16, torch.float16):
            logits = logits.float()
        if temperature != 1.0:
            logits = logits / temperature
        return packed.unpack(-nn.functional.cross_entropy(logits, packed.target, reduction="none")), logits


@torch.no_grad()
def entropy(logits: Tensor) -> Tensor:
    """[M, V] -> [M] entropy of the next-token distribution, in nats."""
    rows = max(ENTROPY_LOGITS // logits.shape[-1], 1)
    return torch.cat([_entropy(part) for part in logits.detach().split(rows)])


def _entropy(logits: Tensor) -> Tensor:
    logp = logits.log_softmax(-1)
    return -(logp.exp() * logp).sum(-1)


def load(model: Model, seed: int, device: torch.device, weights: Path | None = None) -> CausalLM:
    """The model as its settings describe it, or as it stands in the folder `weights`."""
    dtype = getattr(torch, model.dtype)
    if isinstance(model, Scratch) and weights is None:
        module, tokenizer = _from_scratch(model, seed, dtype)
    else:
        module, tokenizer = _from_folder(model, weights, dtype)
    if module.config._attn_implementation == "sdpa" and module._supports_attention_backend:
        module.set_attn_implementation(NAME)
    if tokenizer.eos_token_id is None:
        raise Problems(["model.path: its tokenizer names no eos_token, so no answer could end; one that does would do"])
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return CausalLM(cast("PreTrainedModel", module.to(device)), tokenizer)


def _from_scratch(model: Scratch, seed: int, dtype: torch.dtype) -> tuple[Any, PreTrainedTokenizerFast]:
    tokenizer = characters(model.alphabet)
    config = AutoConfig.for_model(
        model.architecture,
        vocab_size=len(tokenizer),
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        num_hidden_layers=model.num_hidden_layers,
        num_attention_heads=model.num_attention_heads,
        num_key_value_heads=model.num_key_value_heads,
        head_dim=model.hidden_size // model.num_attention_heads,
        max_position_embeddings=model.max_position_embeddings,
        tie_word_embeddings=model.tie_word_embeddings,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config, dtype=dtype), tokenizer


def _from_folder(model: Model, weights: Path | None, dtype: torch.dtype) -> tuple[Any, PreTrainedTokenizerFast]:
    path, more = str(weights), dict[str, Any]()
    if isinstance(model, Pretrained):
        more["trust_remote_code"] = model.trust_remote_code
        if weights is None:
            path, more["revision"] = weights_of(model.path), model.revision or "main"
    try:
        tokenizer = _tokenizer_class(Path(path)).from_pretrained(path, **more)
        return AutoModelForCausalLM.from_pretrained(path, dtype=dtype, use_safetensors=True, **more), tokenizer
    except (OSError, ValueError, SafetensorError) as error:
        raise Problems([f"model.path: {path!r} cannot be loaded: {' '.join(str(error).split())}"]) from error


def _tokenizer_class(folder: Path) -> Any:
    """A checkpoint's tokenizer is taken as it was saved: for some models (qwen2) AutoTokenizer rebuilds another."""
    ours = (folder.parent / MANIFEST).is_file() and (folder / "tokenizer.json").is_file()
    return PreTrainedTokenizerFast if ours else AutoTokenizer


def characters(alphabet: str) -> PreTrainedTokenizerFast:
    """A tokenizer with one token for each character."""
    special = ["<pad>", "<eos>", "<unk>"]
    vocabulary = {token: number for number, token in enumerate([*special, *alphabet])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"(?m)."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )  # fmt: skip


@torch.no_grad()
def _packs(module: PreTrainedModel) -> bool:
    """Whether sequences packed into one row are computed as if each stood alone. Measured, not looked up."""
    layers = getattr(module.config.get_text_config(), "layer_types", None) or ()
    if module.config._attn_implementation != NAME or "chunked_attention" in layers:  # chunks are longer than we measure
        return False
    device = module.device
    module.eval()
    numbers = torch.arange(3, 12, device=device) % module.config.get_text_config().vocab_size
    alone = [module(input_ids=part[None], use_cache=False).logits[0] for part in (numbers[:4], numbers[4:])]
    places = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 4], device=device)
    try:
        packed = module(
            input_ids=numbers[None], position_ids=places[None], attention_mask=NO_MASK, use_cache=False,
            segments=((1, 4), (1, 5)), logits_to_keep=torch.arange(9, device=device),
        ).logits[0]  # fmt: skip
    except RuntimeError:  # it reads the mask itself, and NO_MASK fits nothing
        return False
    if packed.shape != (9, alone[0].shape[-1]):
        return False
    expected = torch.cat(alone).float()
    near = 0.1 if module.dtype in (torch.bfloat16, torch.float16) else 1e-3
    return bool((packed.float() - expected).abs().max() <= near * expected.abs().max())
