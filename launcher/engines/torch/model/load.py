"""Loads models from a folder, a hub or a random initialisation, with adapters, in their number format."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from launcher.core.problems import Problem, Problems
from launcher.engines.torch.model.attention import NAME
from launcher.engines.torch.model.network import CausalLM, CriticNetwork
from launcher.engines.torch.model.whole import load_whole
from launcher.models import texts
from launcher.models.pretrained import Pretrained, base_folder, weights_of
from launcher.models.scratch import Scratch
from launcher.spec.model import Model
from launcher.text.tokenizer import character_tokenizer, read_tokenizer

ADAPTER = "adapter_config.json"  # peft's name
VALUE_HEAD = "value_head.safetensors"


def load_model(
    model: Model, seed: int, device: torch.device, weights: Path | None = None, *, adapt: bool = True,
    mixed: bool = False,
) -> CausalLM:  # fmt: skip
    """The model of the settings, or the one saved in the folder `weights`."""
    dtype = getattr(torch, model.dtype)
    adapter = weights if weights and (weights / ADAPTER).is_file() else None
    source = _source(model, None if adapter else weights)
    if source is None:
        assert isinstance(model, Scratch)
        module, tokenizer = _from_scratch(model, seed, dtype)
    else:
        module, tokenizer = _from_folder(source, model, dtype)
    _configure(module, model)
    if tokenizer.eos_token_id is None:
        got = "its tokenizer names no eos_token, so no answer could end"
        raise Problems(Problem("model.path", got, "use a tokenizer that names one", "not-supported"))
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    module = module.to(device)
    published = texts.read_saved(Path(source), base_folder(Path(source))) if source else {}
    if not (adapt and model.lora_rank):
        return CausalLM(module, tokenizer, mixed, published=published)
    from launcher.engines.torch.model import adapters  # noqa: PLC0415  # late: peft takes half a second

    path = source if isinstance(model, Pretrained) else None
    if path and (Path(path) / ADAPTER).is_file():  # merged just now, so no folder holds them
        path = None
    adapted = adapters.add_adapters(module, model, seed, path, adapter)
    return CausalLM(adapted, tokenizer, mixed, base=module, keep_base=path is None, published=published)


def load_critic(
    model: Model, seed: int, device: torch.device, weights: Path | None = None, *, mixed: bool = False
) -> CriticNetwork:
    """A new critic on the decoder of `model`, or the one saved in the folder `weights`."""
    if weights is None:
        base = load_model(model, seed, device, adapt=False).base
        decoder = cast("Any", base).get_decoder()
        if decoder is base:
            got = f"{type(base).__name__} has no decoder of its own for a critic"
            raise Problems(Problem("model.path", got, "use algorithm=grpo", "not-supported"))
        return CriticNetwork(decoder, mixed)
    decoder = load_whole(AutoModel, str(weights), "model.path", dtype=getattr(torch, model.dtype))
    _configure(decoder, model)
    critic = CriticNetwork(decoder.to(device), mixed)
    critic.head.load_state_dict(load_file(weights / VALUE_HEAD))
    return critic


def _source(model: Model, weights: Path | None) -> str | None:
    """The folder, or the name on a hub, that weights come from; None where they are initialised."""
    if weights or not isinstance(model, Pretrained):
        return str(weights) if weights else None
    return weights_of(model.path)


def _configure(module: PreTrainedModel, model: Model) -> None:
    if module.config._attn_implementation == "sdpa" and module._supports_attention_backend:
        module.set_attn_implementation(NAME)
    if model.enable_gradient_checkpointing:
        module.gradient_checkpointing_enable({"use_reentrant": False})


def _from_scratch(model: Scratch, seed: int, dtype: torch.dtype) -> tuple[Any, PreTrainedTokenizerFast]:
    tokenizer = character_tokenizer(model.vocabulary, chat=model.chat)
    names = (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "head_dim", "max_position_embeddings", "tie_word_embeddings",
    )  # fmt: skip
    config = AutoConfig.for_model(
        model.architecture, **{name: getattr(model.shape, name) for name in names}, vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id, bos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config, dtype=dtype), tokenizer


def _from_folder(path: str, model: Model, dtype: torch.dtype) -> tuple[Any, PreTrainedTokenizerFast]:
    options = dict[str, Any]()
    if isinstance(model, Pretrained):
        options = {"trust_remote_code": model.trust_remote_code, "revision": model.revision or "main"}
    try:
        tokenizer = read_tokenizer(path, **options)
        if (Path(path) / ADAPTER).is_file():
            from launcher.engines.torch.model import adapters  # noqa: PLC0415  # late: peft takes half a second

            return adapters.load_merged(Path(path), dtype, options), tokenizer
        return load_whole(AutoModelForCausalLM, path, "model.path", dtype=dtype, **options), tokenizer
    except (OSError, ValueError, SafetensorError) as error:
        got = f"{path!r} cannot be loaded: {' '.join(str(error).split())}"
        raise Problems(Problem("model.path", got, code="bad-file")) from error
