"""Shapes of public models' folders, made tiny: families, tokenizer classes, generation settings, templates, shards.

Of each, a plan, two steps of SFT, the checkpoint and its export have the tokens of tokenizer.json, and keep the small
files as they came; or the plan refuses it in words. `model_folders.py [NAME ...]` makes and trains those named.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from launcher.models.pretrained import Pretrained
from launcher.text.tokenizer import load_tokenizer

TEXTS = [
    "In 1907, 12345 people came.\n\nYes, they did!", "  two  blanks, don't", "Größe 7 km², naïve café", "x_1 = f(2)\n",
    "\tif a >= b:\n\t\treturn None\n",
]  # fmt: skip
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
ONE_DIGIT = WORDS.replace("{1,3}", "")
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
KEPT = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "config.json",
        "chat_template.jinja", "added_tokens.json")  # fmt: skip
SMALL = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 512,
}  # fmt: skip
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512}
BLOOM = {"hidden_size": 32, "n_layer": 2, "n_head": 4}
FALCON = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
OPT = {"hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "word_embed_proj_dim": 32,
       "max_position_embeddings": 512}  # fmt: skip


def split_by(words: str) -> Any:
    parts = [pre_tokenizers.Split(Regex(words), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    return pre_tokenizers.Sequence(parts)


def byte_level(words: str = "", ends: str = "<|endoftext|>", chat: bool = True) -> Tokenizer:
    """As of Llama 3, Qwen and GPT-2: bytes, split by a pattern or by GPT-2's own."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = split_by(words) if words else pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder, made.post_processor = decoders.ByteLevel(), processors.ByteLevel(trim_offsets=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        TEXTS * 20, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    )
    made.add_special_tokens([ends, *(["<|im_start|>", "<|im_end|>"] if chat else [])])
    return made


def sentence_pieces(bos: str = "<s>", ends: str = "</s>", prepended: bool = True) -> Tokenizer:
    """As of Llama 2, Mistral and Gemma: pieces with bytes for what is unknown."""
    made = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    replaced: list[Any] = [normalizers.Replace(" ", "▁")]
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), *replaced] if prepended else replaced)
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if prepended else parts)
    special = ["<unk>", bos, ends, *(f"<0x{number:02X}>" for number in range(256))]
    written = [text.replace(" ", "▁") for text in TEXTS * 20]
    made.train_from_iterator(written, trainers.BpeTrainer(vocab_size=480, special_tokens=special, show_progress=False))
    made.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    opening = [(bos, made.token_to_id(bos))]
    made.post_processor = processors.TemplateProcessing(f"{bos} $A", f"{bos} $A {bos} $B", opening)
    return made


@dataclass(frozen=True)
class Shape:
    """A folder as a public family has it."""

    family: str
    tokenizer: Tokenizer
    tokenizer_class: str | None = "PreTrainedTokenizerFast"
    config: Mapping[str, Any] = field(default_factory=lambda: SMALL)
    eos: str | None = "<|im_end|>"
    """In tokenizer_config.json; None leaves it to config.json."""
    bos: str | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further entries of tokenizer_config.json."""
    generation: Mapping[str, Any] | None = field(default_factory=dict)
    """generation_config.json beside the ids of tokens; None is without the file."""
    template: str = "jinja"
    """Where the chat template stands: a file of its own, `config` or nowhere."""
    shards: str = "5GB"
    map_file: bool = False
    """special_tokens_map.json and added_tokens.json, as older versions write."""
    flags: Mapping[str, Any] = field(default_factory=dict)
    """Entries of config.json that transformers moves to generation settings."""

    def save(self, folder: Path) -> None:
        known, end = self.tokenizer, self.eos or "<|endoftext|>"
        ids = {"eos_token_id": known.token_to_id(end), "bos_token_id": known.token_to_id(self.bos or end)}
        torch.manual_seed(0)
        config = AutoConfig.for_model(self.family, vocab_size=known.get_vocab_size(), pad_token_id=ids["eos_token_id"],
                                      **ids, **self.config)  # fmt: skip
        AutoModelForCausalLM.from_config(config).save_pretrained(folder, max_shard_size=self.shards)
        change(folder / "config.json", self.flags)
        known.save(str(folder / "tokenizer.json"))
        named: dict[str, Any] = {"model_max_length": 512, "clean_up_tokenization_spaces": False, **self.more}
        named |= {"tokenizer_class": self.tokenizer_class} if self.tokenizer_class else {}
        tokens = {name: token for name, token in (("eos_token", self.eos), ("bos_token", self.bos)) if token}
        if self.map_file:
            write(folder / "special_tokens_map.json", tokens)
            added = known.get_added_tokens_decoder().items()
            write(folder / "added_tokens.json", {one.content: number for number, one in added})
        if self.template == "jinja":
            (folder / "chat_template.jinja").write_text(CHATML)
        write(folder / "tokenizer_config.json",
              named | tokens | ({"chat_template": CHATML} if self.template == "config" else {}))  # fmt: skip
        if self.generation is None:
            (folder / "generation_config.json").unlink()
        else:
            write(folder / "generation_config.json", {**ids, **self.generation})


def write(path: Path, node: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(node, indent=2))


def change(path: Path, entries: Mapping[str, Any]) -> None:
    write(path, json.loads(path.read_text()) | dict(entries))


def marked() -> Tokenizer:
    """With added tokens that take blanks beside them, and one that is no special token."""
    made = byte_level(WORDS)
    made.add_tokens([AddedToken("don't", special=False), AddedToken("<|fim|>", lstrip=True, rstrip=True, special=True)])
    return made


def of_gemma() -> Tokenizer:
    return sentence_pieces("<bos>", "<eos>", prepended=False)


REFUSED = 2  # exit code of what the checks refuse
TIED, FOUR_HEADS = {**SMALL, "tie_word_embeddings": True}, {**SMALL, "num_key_value_heads": 4}
BOS, NO_BOS = {"add_bos_token": True}, {"add_bos_token": False}
BOS_ALONE = BOS | {"add_eos_token": False}
HYBRID = {"cache_implementation": "hybrid", "top_k": 64}
SAMPLED = {"temperature": 0.6, "top_p": 0.9, "do_sample": True}
UNSAVED = {"temperature": 0.9, "top_p": 0.6, "max_length": 4096}
"""Transformers reads these and refuses to save them once anything has changed: they need do_sample."""
NO_CHAT: dict[str, Any] = {"template": "none", "eos": "<|endoftext|>"}
PIECES: dict[str, Any] = {"eos": "</s>", "bos": "<s>"}
EXPERTS = {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}
MLA = {**SMALL, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
       "head_dim": 8, "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1,
       "topk_group": 1, "n_shared_experts": 1, "moe_intermediate_size": 16, "first_k_dense_replace": 1}  # fmt: skip
SHAPES = {
    "llama-2": Shape("llama", sentence_pieces(), "LlamaTokenizer", **PIECES, more=BOS | {"legacy": False}),
    "llama-3": Shape("llama", byte_level(WORDS), shards="20KB", generation=SAMPLED),
    "llama-3-several-ends": Shape("llama", byte_level(WORDS), generation={"eos_token_id": [400, 402]}),
    "llama-gpt2": Shape("llama", byte_level(WORDS), "GPT2Tokenizer"),
    "smollm": Shape("llama", byte_level(ONE_DIGIT), "GPT2Tokenizer", TIED, template="config"),
    "qwen2": Shape("qwen2", byte_level(ONE_DIGIT), "Qwen2Tokenizer", TIED, more=NO_BOS, generation=SAMPLED),
    "qwen2-fast": Shape("qwen2", byte_level()),
    "qwen3": Shape("qwen3", byte_level(ONE_DIGIT), "Qwen2Tokenizer", TIED, template="config"),
    "qwen3-moe": Shape("qwen3_moe", byte_level(ONE_DIGIT), "Qwen2Tokenizer", {**SMALL, **EXPERTS}),
    "deepseek-distill": Shape("qwen2", byte_level(WORDS), "LlamaTokenizerFast", bos="<|im_start|>", more=BOS_ALONE),
    "gemma-2": Shape("gemma2", of_gemma(), "GemmaTokenizer", SMALL, "<eos>", "<bos>"),
    "gemma-3": Shape("gemma3_text", of_gemma(), "GemmaTokenizer", TIED, "<eos>", "<bos>", generation=HYBRID),
    "mistral": Shape("mistral", sentence_pieces(), "LlamaTokenizer", **PIECES, map_file=True),
    "mistral-nemo": Shape("mistral", byte_level(WORDS), generation=None),
    "mixtral": Shape("mixtral", sentence_pieces(), "LlamaTokenizer", {**SMALL, "num_local_experts": 4}, **PIECES),
    "phi-3": Shape("phi3", sentence_pieces(), "LlamaTokenizer", FOUR_HEADS, **PIECES, more=NO_BOS),
    "phi": Shape("phi", byte_level(), "CodeGenTokenizer", SMALL, **NO_CHAT, map_file=True),
    "gpt-2": Shape("gpt2", byte_level(chat=False), None, GPT2, None, template="none", generation=None),
    "gpt-2-flags": Shape(
        "gpt2", byte_level(chat=False), "GPT2Tokenizer", GPT2, **NO_CHAT, generation=None, flags=UNSAVED
    ),
    "gpt-neox": Shape("gpt_neox", byte_level(), "GPTNeoXTokenizer", FOUR_HEADS, **NO_CHAT),
    "olmo-2": Shape("olmo2", byte_level(WORDS), "GPT2Tokenizer"),
    "falcon": Shape("falcon", byte_level(ONE_DIGIT), config=FALCON, **NO_CHAT),
    "starcoder-2": Shape("starcoder2", byte_level(ONE_DIGIT), "GPT2Tokenizer", **NO_CHAT, generation=None),
    "granite": Shape("granite", byte_level(ONE_DIGIT), "GPT2Tokenizer", TIED, template="config"),
    "cohere": Shape("cohere", byte_level(ONE_DIGIT), "CohereTokenizer", bos="<|im_start|>", more=BOS),
    "deepseek-v3": Shape("deepseek_v3", byte_level(WORDS), "LlamaTokenizerFast", MLA),
    "opt": Shape("opt", byte_level(), "GPT2Tokenizer", OPT, **NO_CHAT, bos="<|endoftext|>", map_file=True),
    "bloom": Shape("bloom", byte_level(WORDS), "BloomTokenizerFast", BLOOM, **NO_CHAT),
    "stablelm": Shape("stablelm", byte_level(), "GPTNeoXTokenizer", FOUR_HEADS, template="config"),
    "glm-4": Shape("glm", byte_level(WORDS), generation={"eos_token_id": [400, 401]}),
    "unsaved-settings": Shape("llama", byte_level(WORDS), generation=UNSAVED),
    "unsaved-flags": Shape("llama", byte_level(WORDS), flags=UNSAVED),
    "impossible-settings": Shape("llama", byte_level(WORDS), generation={"early_stopping": "sometimes"}),
    "added-tokens": Shape("llama", marked(), map_file=True),
}


def raw_ids(folder: Path) -> list[list[int]]:
    made = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [made.encode(text, add_special_tokens=False).ids for text in TEXTS]


def our_ids(folder: Path) -> list[list[int]]:
    tokenizer: PreTrainedTokenizerFast = load_tokenizer(Pretrained(path=str(folder)))
    return [tokenizer(text, add_special_tokens=False).input_ids for text in TEXTS]


def rlrun(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "launcher", *words], capture_output=True, text=True, check=False)


def try_shape(shape: Shape, name: str, root: Path, rows: Path) -> tuple[bool, str]:
    """Whether it went as it should, and what happened."""
    folder, out, run = root / name, root / f"{name}-out", root / "runs" / "x" / name
    shape.save(folder)
    words = ["algorithm=sft", f"model={folder}", f"data={rows}", "data.train_batch_size=2", "hardware=cpu",
             "trainer.total_training_steps=2", "trainer.save_freq=2", f"trainer.run_root={root / 'runs'}",
             "trainer.project_name=x", f"trainer.experiment_name={name}"]  # fmt: skip
    trained = rlrun("train", *words)
    if trained.returncode == REFUSED:
        return True, f"refused: {last_line(trained, 'FAIL')}"
    if trained.returncode:
        return False, f"not trained: {last_line(trained)}"
    if (exported := rlrun("checkpoints", "export", str(run), "--to", "hf", "--out", str(out))).returncode:
        return False, f"not exported: {last_line(exported)}"
    expected, policy = raw_ids(folder), next((run / "checkpoints").glob("step_*")) / "policy"
    found = {"plan and training": our_ids(folder), "checkpoint": our_ids(policy), "export": our_ids(out),
             "export's tokenizer.json": raw_ids(out)}  # fmt: skip
    if wrong := [place for place, ids in found.items() if ids != expected]:
        return False, f"other tokens in {', '.join(wrong)}"
    published = {path.name: path.read_bytes() for path in folder.iterdir() if path.name in KEPT}
    changed = [
        file for file, text in published.items() if not (out / file).exists() or (out / file).read_bytes() != text
    ]
    return True, "finished" + (f"; changed: {', '.join(changed)}" if changed else "")


def last_line(ran: subprocess.CompletedProcess[str], sign: str = "") -> str:
    lines = (ran.stdout + ran.stderr).splitlines()
    return next((line for line in reversed(lines) if line.strip() and sign in line), "nothing printed")


def main(names: Sequence[str]) -> int:
    wrong = 0
    with TemporaryDirectory() as place:
        root = Path(place)
        rows = root / "rows.jsonl"
        rows.write_text("".join(json.dumps({"prompt": text, "response": text[::-1]}) + "\n" for text in TEXTS[:4]))
        for name in names or SHAPES:
            good, what = try_shape(SHAPES[name], name, root, rows)
            wrong += not good
            print(f"{'ok' if good else 'WRONG':5}  {name:22}  {what}", flush=True)
    print(f"{len(names or SHAPES)} folders, {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
