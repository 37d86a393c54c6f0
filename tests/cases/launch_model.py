"""A model's folder in Hugging Face's layout, small and whole: config, tokenizer with a chat template, safetensors."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-*/=?!.,:;#$\\{}()<>_' \n"
RANK, TARGETS = 4, ["q_proj", "v_proj"]
SPECIAL = ("<pad>", "<eos>", "<unk>", "<|user|>", "<|assistant|>", "<|system|>")
TEMPLATE = (
    "{% for turn in messages %}<|{{ turn.role }}|>{{ turn.content }}"
    "{% if turn.role == 'assistant' %}<eos>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@dataclass(frozen=True)
class Model:
    """A decoder of Llama's kind: a token for each character, a chat template. All its weights are equal, unless
    `random`. Patterns of tensors are regular expressions that match a whole name."""

    shards: int = 1
    positions: int = 2048
    template: bool | str = True
    """False: none; a text: that one."""
    extra_tokens: int = 0
    """Tokens that the tokenizer knows and the embedding has no row for."""
    tokens: Sequence[str] = ()
    """Further special tokens, with a row in the embedding."""
    alphabet: str = ALPHABET
    random: bool = False
    dtype: str = "float32"
    rename: Mapping[str, str] = field(default_factory=dict)
    """Beginning of a tensor's name -> another one."""
    drop: Sequence[str] = ()
    """Patterns of tensors that the file does not have."""
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Pattern -> shape in the file."""
    more: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Tensors that the file has beside those of the model."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Laid over config.json."""
    config_without: Sequence[str] = ()
    """Keys that config.json does not have."""
    tokenizer: Mapping[str, Any] = field(default_factory=dict)
    """Laid over tokenizer_config.json."""

    @property
    def vocabulary(self) -> list[str]:
        return [*SPECIAL, *self.tokens, *self.alphabet]

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        words = len(self.vocabulary)
        shape = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": words, "hidden_size": 32,
                 "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                 "head_dim": 8, "max_position_embeddings": self.positions, "tie_word_embeddings": False,
                 "rms_norm_eps": 1e-6, "hidden_act": "silu", "bos_token_id": None, "eos_token_id": 1,
                 "pad_token_id": 0, "dtype": self.dtype}  # fmt: skip
        config = {name: value for name, value in {**shape, **self.config}.items() if name not in self.config_without}
        (folder / "config.json").write_text(json.dumps(config))
        self.save_tokenizer(folder)
        tensors = self._weights(words)
        if self.shards == 1:
            save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        else:
            self._in_parts(folder, tensors)

    def _weights(self, words: int) -> dict[str, np.ndarray]:
        sizes = {name: _fitting(self.shapes, name, size) for name, size in _tensors(words).items()}
        sizes |= {name: tuple(size) for name, size in self.more.items()}
        numbers = np.random.default_rng(0)
        found: dict[str, np.ndarray] = {}
        for name, size in sizes.items():
            if any(re.fullmatch(pattern, name) for pattern in self.drop):
                continue
            spread = self.random and len(size) > 1
            array = numbers.normal(0, 0.05, size) if spread else np.full(size, 1.0 if self.random else 0.01)
            found[self._renamed(name)] = array.astype(self.dtype)
        return found

    def _renamed(self, name: str) -> str:
        for beginning, other in self.rename.items():
            if name.startswith(beginning):
                return other + name.removeprefix(beginning)
        return name

    def _in_parts(self, folder: Path, tensors: dict[str, np.ndarray]) -> None:
        where: dict[str, str] = {}
        names = list(tensors)
        for part in range(self.shards):
            file = f"model-{part + 1:05}-of-{self.shards:05}.safetensors"
            held = {name: tensors[name] for name in names[part :: self.shards]}
            save_file(held, folder / file, metadata={"format": "pt"})
            where |= dict.fromkeys(held, file)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))

    def save_tokenizer(self, folder: Path) -> None:
        known = [*self.vocabulary, *(f"<extra_{number}>" for number in range(self.extra_tokens))]
        tokenizer = Tokenizer(models.WordLevel({token: place for place, token in enumerate(known)}, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"(?m)."), "isolated")
        tokenizer.decoder = decoders.Fuse()
        tokenizer.add_special_tokens([*SPECIAL, *self.tokens])
        tokenizer.save(str(folder / "tokenizer.json"))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>", "eos_token": "<eos>",
                "unk_token": "<unk>", "clean_up_tokenization_spaces": False}  # fmt: skip
        own = self.template if isinstance(self.template, str) else TEMPLATE
        template = {"chat_template": own} if self.template else {}
        (folder / "tokenizer_config.json").write_text(json.dumps({**config, **template, **self.tokenizer}))


@dataclass(frozen=True)
class Adapter:
    """LoRA's matrices in peft's layout, for a model as above, with its tokenizer."""

    base: str
    """What adapter_config.json names."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Laid over adapter_config.json."""

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": self.base, "r": RANK,
                "lora_alpha": 8, "lora_dropout": 0.0, "bias": "none", "target_modules": TARGETS,
                "inference_mode": True}  # fmt: skip
        (folder / "adapter_config.json").write_text(json.dumps({**config, **self.config}))
        tensors: dict[str, np.ndarray] = {}
        for name, size in _tensors(len(SPECIAL) + len(ALPHABET)).items():
            place = name.removesuffix(".weight")
            if place.rpartition(".")[2] in TARGETS:
                tensors[f"base_model.model.{place}.lora_A.weight"] = np.full((RANK, size[1]), 0.01, np.float32)
                tensors[f"base_model.model.{place}.lora_B.weight"] = np.zeros((size[0], RANK), np.float32)
        save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        Model().save_tokenizer(folder)


def _fitting(patterns: Mapping[str, Any], name: str, otherwise: Any) -> Any:
    found = (value for pattern, value in patterns.items() if re.fullmatch(pattern, name))
    return next(found, otherwise)


def _tensors(words: int) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (words, 32)}
    for layer in range(2):
        at = f"model.layers.{layer}"
        found |= {f"{at}.self_attn.{name}_proj.weight": (size, 32) for name, size in (("q", 32), ("k", 16), ("v", 16))}
        found |= {f"{at}.self_attn.o_proj.weight": (32, 32), f"{at}.mlp.gate_proj.weight": (64, 32),
                  f"{at}.mlp.up_proj.weight": (64, 32), f"{at}.mlp.down_proj.weight": (32, 64),
                  f"{at}.input_layernorm.weight": (32,), f"{at}.post_attention_layernorm.weight": (32,)}  # fmt: skip
    return found | {"model.norm.weight": (32,), "lm_head.weight": (words, 32)}
