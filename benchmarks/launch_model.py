"""A model's folder in Hugging Face's layout, small and whole: config, tokenizer with a chat template, safetensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-*/=?!.,:;#$\\{}()<>_' \n"
SPECIAL = ("<pad>", "<eos>", "<unk>", "<|user|>", "<|assistant|>", "<|system|>")
TEMPLATE = (
    "{% for turn in messages %}<|{{ turn.role }}|>{{ turn.content }}"
    "{% if turn.role == 'assistant' %}<eos>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@dataclass(frozen=True)
class Model:
    """A decoder of Llama's kind with random weights: a token for each character, a chat template."""

    shards: int = 1
    positions: int = 2048
    template: bool = True
    extra_tokens: int = 0
    """Tokens that the tokenizer knows and the embedding has no row for."""
    pickle: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)
    """Laid over config.json."""

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        words = len(SPECIAL) + len(ALPHABET)
        shape = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": words, "hidden_size": 32,
                 "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                 "head_dim": 8, "max_position_embeddings": self.positions, "tie_word_embeddings": False,
                 "rms_norm_eps": 1e-6, "hidden_act": "silu", "bos_token_id": None, "eos_token_id": 1,
                 "pad_token_id": 0, "dtype": "float32"}  # fmt: skip
        (folder / "config.json").write_text(json.dumps({**shape, **self.config}))
        self._tokenizer(folder)
        tensors = {name: np.full(size, 0.01, np.float32) for name, size in _tensors(words).items()}
        if self.pickle:
            (folder / "pytorch_model.bin").write_bytes(b"PK\x03\x04")
        elif self.shards == 1:
            save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        else:
            self._in_parts(folder, tensors)

    def _in_parts(self, folder: Path, tensors: dict[str, np.ndarray]) -> None:
        where: dict[str, str] = {}
        names = list(tensors)
        for part in range(self.shards):
            file = f"model-{part + 1:05}-of-{self.shards:05}.safetensors"
            held = {name: tensors[name] for name in names[part :: self.shards]}
            save_file(held, folder / file, metadata={"format": "pt"})
            where |= dict.fromkeys(held, file)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))

    def _tokenizer(self, folder: Path) -> None:
        known = [*SPECIAL, *ALPHABET, *(f"<extra_{number}>" for number in range(self.extra_tokens))]
        tokenizer = Tokenizer(models.WordLevel({token: place for place, token in enumerate(known)}, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"(?m)."), "isolated")
        tokenizer.decoder = decoders.Fuse()
        tokenizer.add_special_tokens(list(SPECIAL))
        tokenizer.save(str(folder / "tokenizer.json"))
        told = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>", "eos_token": "<eos>",
                "unk_token": "<unk>", "clean_up_tokenization_spaces": False}  # fmt: skip
        template = {"chat_template": TEMPLATE} if self.template else {}
        (folder / "tokenizer_config.json").write_text(json.dumps({**told, **template}))


def _tensors(words: int) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (words, 32)}
    for layer in range(2):
        at = f"model.layers.{layer}"
        found |= {f"{at}.self_attn.{name}_proj.weight": (size, 32) for name, size in (("q", 32), ("k", 16), ("v", 16))}
        found |= {f"{at}.self_attn.o_proj.weight": (32, 32), f"{at}.mlp.gate_proj.weight": (64, 32),
                  f"{at}.mlp.up_proj.weight": (64, 32), f"{at}.mlp.down_proj.weight": (32, 64),
                  f"{at}.input_layernorm.weight": (32,), f"{at}.post_attention_layernorm.weight": (32,)}  # fmt: skip
    return found | {"model.norm.weight": (32,), "lm_head.weight": (words, 32)}
