"""Files of somebody hostile (chat template, configuration, tokenizer, weights, adapter): what is spoilt in a healthy
folder, and what `rlrun plan` must say of it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from launch_model import TEMPLATE, Adapter, Model


@dataclass(frozen=True)
class Case:
    name: str
    kind: str
    spoil: Callable[[Path], object]
    """Makes a healthy model's folder hostile."""
    expected: str
    """Pattern of a FAIL line of a plan that must refuse; `OK` where it must not, `OK or PATTERN` where both will do,
    `WARN PATTERN` where it goes on and warns."""
    algorithm: str = "sft"


# ---- files

CONFIG, TOKENIZER, SETTINGS = "config.json", "tokenizer.json", "tokenizer_config.json"
WEIGHTS, INDEX, ADAPTER = "model.safetensors", "model.safetensors.index.json", "adapter_config.json"
DEEP = '{"a":' * 100_000 + "1" + "}" * 100_000
DIGITS = "9" * 400

WHOLE: dict[str, bytes] = {
    "empty": b"", "cut": b'{"model_type": "lla', "a list": b"[]", "null": b"null", "deep": DEEP.encode(),
    "deep lists": b"[" * 200_000, "UTF-16": '{"a": 1}'.encode("utf-16"), "bytes": bytes(range(256)) * 16,
    "5,000 digits": b'{"hidden_size": ' + b"9" * 5000 + b"}",
    "400,000 keys": json.dumps({f"key_{number}": number for number in range(400_000)}).encode(),
}  # fmt: skip
"""What stands in place of a file."""

PLACED = [
    *((CONFIG, how) for how in (*WHOLE, "pipe", "folder", "loop", "missing")),
    *((TOKENIZER, how) for how in ("empty", "cut", "a list", "deep", "bytes", "pipe", "folder", "loop")),
    *((SETTINGS, how) for how in ("cut", "a list", "deep", "bytes", "pipe", "loop")),
    *(("generation_config.json", how) for how in ("a list", "deep", "pipe")),
    *(("special_tokens_map.json", how) for how in ("a list", "deep", "pipe")),
    *(("added_tokens.json", how) for how in ("a list", "deep", "pipe")),
    *((INDEX, how) for how in ("a list", "deep", "pipe", "400,000 keys")),
    *((WEIGHTS, how) for how in ("empty", "bytes", "pipe", "folder", "loop", "missing")),
]
OTHERS = {(WEIGHTS, "missing"): "no (weights|safetensors)|safetensors", (CONFIG, "missing"): "config.json|no model"}

EDITS: dict[str, list[str | tuple[str, str]]] = {
    # a key and what it is set to; the plan must name the key, or what stands beside it
    CONFIG: [
        '"hidden_size": 1e999', '"hidden_size": NaN', f'"hidden_size": {DIGITS}', '"hidden_size": -32',
        '"hidden_size": 1099511627776', '"hidden_size": true', '"hidden_size": {"a": 1}',
        '"num_hidden_layers": 1000000000', '"num_hidden_layers": -1', '"num_hidden_layers": "2"',
        '"num_hidden_layers": 1900', '"num_hidden_layers": 2.5',
        ('"num_attention_heads": 1000000', "num_attention_heads|number of attention heads"),

        '"num_attention_heads": 0', '"num_key_value_heads": -1', '"num_key_value_heads": 3', '"head_dim": 1000000000',
        '"head_dim": -8', '"head_dim": 7', '"head_dim": NaN', '"intermediate_size": 1000000000000',
        '"vocab_size": 1000000000000', '"vocab_size": 0', '"vocab_size": [93]', '"max_position_embeddings": -1',
        '"max_position_embeddings": 1000000000000000', '"rope_theta": NaN', '"rope_theta": "x"', '"rope_scaling": [1]',
        '"rope_scaling": {"rope_type": "linear", "factor": 1e300}', '"rope_scaling": {"rope_type": "nope"}',
        '"rms_norm_eps": 1e999', '"rms_norm_eps": "x"', '"hidden_act": "nope"', '"hidden_act": [1]',
        ('"dtype": "float7"', "dtype"), ('"dtype": ["float32"]', "dtype"), '"tie_word_embeddings": [1]',
        ('"eos_token_id": 1000000000000', "WARN eos_token"), ('"eos_token_id": "x"', "eos_token"),
        ('"eos_token_id": [[1]]', "eos_token"),
        (f'"eos_token_id": {[*range(100_000)]}', "WARN eos_token"), ('"pad_token_id": -5', "OK or pad_token"),
        ('"quantization_config": [1]', "OK or quantization_config"), ('"model_type": ["llama"]', "model_type"),
        ('"model_type": {"a": 1}', "model_type"), ('"model_type": "../../../etc"', "model_type"),
        (f'"model_type": "{"a" * 2**20}"', "model_type"), ('"model_type": "\\u001b[2Jx"', "model_type"),
        ('"architectures": 5', "OK"), (f'"architectures": {["A"] * 200_000}'.replace("'", '"'), "OK"),
        ('"auto_map": {"AutoModelForCausalLM": "mine.Mine"}, "model_type": "mine"', "mine|auto_map"),
        ('"auto_map": [1]', "OK or auto_map"), ('"attention_dropout": NaN', "attention_dropout"),
        (f'"id2label": {json.dumps({str(n): "x" for n in range(50_000)})}', "OK or id2label"),
        ('"text_config": ' + '{"text_config":' * 500 + "1" + "}" * 500, "OK or config.json"),
        ('"layer_types": [1]', "OK or layer_types"), ('"hidden_size": 1, "hidden_size": 32', "OK"),
    ],
    TOKENIZER: [
        ('"model": null', TOKENIZER), ('"model": {"type": "Nope"}', TOKENIZER),
        ('"model": {"type": "BPE", "vocab": [], "merges": []}', TOKENIZER),
        ('"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "zz"]]}', TOKENIZER),
        ('"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"], ["ab", "ab"]]}',
         TOKENIZER),
        ('"model": {"type": "WordLevel", "vocab": {"a": -1}, "unk_token": "<unk>"}', TOKENIZER),
        ('"model": {"type": "WordLevel", "vocab": {}, "unk_token": "<unk>"}', "tokenizer|unk"),
        ('"model": {"type": "WordLevel", "vocab": {"a": 4294967295, "<unk>": 7}, "unk_token": "<unk>"}',
         "token|vocab"),
        ('"normalizer": {"type": "Replace", "pattern": {"Regex": ""}, "content": "aaaaaaaa"}', "OK or tokenizer"),
        ('"normalizer": {"type": "Sequence", "normalizers": [' + ", ".join(
            ['{"type": "Replace", "pattern": {"Regex": "."}, "content": "aaaaaaaa"}'] * 12) + "]}", "tokenizer"),
        ('"normalizer": ' + '{"type": "Sequence", "normalizers": [' * 5000 + "]}" * 5000, TOKENIZER),
        ('"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(\\\\w*|.*)*~"}, "behavior": "Isolated", '
         '"invert": false}', "OK or tokenizer"),
        ('"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(("}, "behavior": "Isolated", "invert": false}',
         TOKENIZER),
        ('"padding": {"strategy": {"Fixed": 1000000000}, "direction": "Right", "pad_to_multiple_of": null, '
         '"pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>"}', "OK"),
        ('"truncation": {"max_length": 0, "strategy": "LongestFirst", "stride": 5, "direction": "Right"}',
         "OK or tokenizer"),
        (f'"added_tokens": {json.dumps([{"id": 200 + n, "content": f"<x{n}>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} for n in range(100_000)])}',  # noqa: E501
         "OK"),
        ('"added_tokens": [{"id": 4000000000, "content": "<eos>", "single_word": false, "lstrip": false, '
         '"rstrip": false, "normalized": false, "special": true}]', "OK or token"),
        ('"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x", "type_id": 0}}], '
         '"pair": [], "special_tokens": {}}', TOKENIZER),
    ],
    SETTINGS: [
        (f'"added_tokens_decoder": {json.dumps({str(200 + n): {"content": f"<x{n}>"} for n in range(100_000)})}',
         "OK or token"),
        ('"added_tokens_decoder": {"x": 5}', "OK or token"), ('"added_tokens_decoder": [1]', "OK or token"),
        ('"model_max_length": 1e999', "OK"), ('"model_max_length": -1', "OK or model_max_length"),
        ('"tokenizer_class": ["x"]', "OK or tokenizer"), ('"tokenizer_class": "os.system"', "OK or tokenizer"),
        ('"auto_map": {"AutoTokenizer": ["mine.Mine", null]}, "tokenizer_class": "Mine"', "OK or code|auto_map"),
        ('"eos_token": 5', "eos_token|tokenizer"), ('"eos_token": {"a": 1}', "eos_token|tokenizer"),
        (f'"eos_token": "{"a" * 2**20}"', "eos|token"), ('"extra_special_tokens": 5', "OK or token"),
        (f'"extra_special_tokens": {json.dumps([f"<y{n}>" for n in range(50_000)])}', "token"),
    ],
    "special_tokens_map.json": [('"eos_token": 5', "OK or token"), ('"eos_token": {"content": []}', "OK or token")],
    "generation_config.json": [
        ('"eos_token_id": 1' + "0" * 30, "WARN eos_token"),
        ('"max_length": "x"', "OK or max_length|generation_config"), ('"eos_token_id": {"a": 1}', "eos_token"),
    ],
    "added_tokens.json": [
        (json.dumps({f"<z{n}>": 200 + n for n in range(100_000)})[1:-1], "OK or token"),
    ],
    INDEX: [
        '"weight_map": []', '"weight_map": {}', ('"weight_map": {"a": "../../../../etc/passwd"}', "weight_map|passwd"),
        ('"weight_map": {"a": 5}', "weight_map|index"), ('"weight_map": {"a": "gone.safetensors"}', "gone"),
        ('"weight_map": {"a": "' + "../" * 3000 + '"}', "weight_map|index"),
    ],
    ADAPTER: [
        ('"r": 1000000000', "adapter_config|rank"), ('"r": -1', "adapter_config|rank"),
        ('"r": "x"', "adapter_config|rank"), ('"r": 1e999', "adapter_config|rank"),
        ('"target_modules": 5', "target_modules"), ('"target_modules": ["nope"]', "target_modules|nope|adapter"),
        ('"target_modules": "((a*)*)*b"', "target_modules|adapter"), ('"base_model_name_or_path": "."', "base|adapter"),
        ('"base_model_name_or_path": 5', "base_model_name_or_path|adapter"), ('"peft_type": "NOPE"', "peft_type|NOPE"),
    ],
}  # fmt: skip


def _tensor(dtype: str = '"F32"', shape: str = "[1]", offsets: str = "[0, 4]", name: str = "a") -> str:
    return f'{{"{name}": {{"dtype": {dtype}, "shape": {shape}, "data_offsets": {offsets}}}}}'


HEADERS: dict[str, str | bytes] = {
    "length 2^60": (2**60).to_bytes(8, "little"), "length 2^64-1": b"\xff" * 8, "length 0": bytes(8),
    "6 bytes": b"\1\0\0\0\0\0", "90 MB of spaces": "{" + " " * 90_000_000 + "}", "deep": DEEP, "a list": "[1]",
    "not UTF-8": (4).to_bytes(8, "little") + b"\xff\xfe{}", "no tensors": "{}", "entry 5": '{"a": 5}',
    "negative shape": _tensor(shape='[-1]'), "shape of 2^62": _tensor(shape='[4611686018427387904]'),
    "400 digits": _tensor(shape=f'[{DIGITS}]'), "1e999": _tensor(shape='[1e999]'),
    "shape is a text": _tensor(shape='"x"'), "dtype X9": _tensor(dtype='"X9"'),
    "dtype is a list": _tensor(dtype='[1]'), "beyond its end": _tensor(offsets='[0, 4000000000]'),
    "offsets turned": _tensor(offsets='[4, 0]'), "negative offsets": _tensor(offsets='[-4, 0]'),
    "one offset": _tensor(offsets='[0]'), "metadata of lists": '{"__metadata__": {"a": [[]]}}',
    "200,000 tensors": "{" + ", ".join(_tensor(name=f"t{n}")[1:-1] for n in range(200_000)) + "}",
}  # fmt: skip
"""What a safetensors file begins with; a text gets its length before it."""


def _place(name: str, how: str, folder: Path) -> None:
    _prepare(name, folder)
    (folder / name).unlink(missing_ok=True)
    if how == "pipe":
        os.mkfifo(folder / name)
    elif how == "folder":
        (folder / name).mkdir()
    elif how == "loop":
        (folder / name).symlink_to(name)
    elif how != "missing":
        (folder / name).write_bytes(WHOLE[how])


def _edit(name: str, edit: str, folder: Path) -> None:
    """The last of equal keys counts, so those that are set anew are taken away first."""
    _prepare(name, folder)
    file = folder / name
    before: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    before.pop(edit.split('"')[1], None)
    rest = json.dumps(before)[1:-1]
    file.write_text("{" + ", ".join(filter(None, (rest, edit))) + "}")


def _prepare(name: str, folder: Path) -> None:
    """Makes it the kind of folder that has such a file."""
    if name == ADAPTER:
        _adapt(folder)
    if name == INDEX:
        (folder / WEIGHTS).unlink()
        Model(shards=2).save(folder / "parts")
        for part in (folder / "parts").glob("model*"):
            part.rename(folder / part.name)


def _adapt(folder: Path) -> None:
    """An adapter in place of the model, which lies beside it."""
    folder.rename(base := folder.with_name("base"))
    Adapter(str(base)).save(folder)


def _begin(header: str | bytes, folder: Path) -> None:
    data = header if isinstance(header, bytes) else len(header.encode()).to_bytes(8, "little") + header.encode()
    (folder / WEIGHTS).write_bytes(data if len(data) < 16 else data + bytes(4))


def _cases() -> Iterator[Case]:
    for name, how in PLACED:
        yield Case(f"{name}: {how}", name, partial(_place, name, how), OTHERS.get((name, how), name))
    for name, edits in EDITS.items():
        for edit in edits:
            text, expected = (edit, edit.split('"')[1]) if isinstance(edit, str) else edit
            shown = text if len(text) < 60 else f"{text[:45]}... ({len(text):,} characters)"
            yield Case(f"{name}: {shown.encode('unicode_escape').decode()}", name, partial(_edit, name, text), expected)
    for what, header in HEADERS.items():
        yield Case(f"header: {what}", WEIGHTS, partial(_begin, header), "safetensors")


# ---- chat templates


def _each(body: str) -> str:
    """A template that is healthy but for what it does with each turn."""
    return TEMPLATE.replace("{% endfor %}", body + "{% endfor %}", 1)


def _doubled(value: str, more: str, times: str = "range(64)") -> str:
    loop = f"{{% for i in {times} %}}{{% set ns.x = {more} %}}{{% endfor %}}"
    return f"{{% set ns = namespace(x={value}) %}}{loop}{{{{ ns.x }}}}"


LONG = "{% for i in range(99999) %}{% for j in range(99999) %}{% for k in range(99999) %}BODY" + "{% endfor %}" * 3
ENDLESS = LONG.replace("BODY", "")
BUSY = "{% for i in range(99999) %}{% set x = i * i %}{% endfor %}"
"""Some hundredths of a second."""
ENTERED = "cycler.__init__.__globals__.os.system('touch escaped')"

TEXTS = {
    "loop to 10^9": "{% for i in range(10**9) %}{% endfor %}",
    "loops in loops": ENDLESS,
    "text times 10^10": "{{ 'a' * 10**10 }}",
    "macro calls itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "3,000 blocks deep": "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
    "50,000 brackets": "{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}",
    "number of 100,000 digits": "{{ " + "9" * 100_000 + " }}",
    "number in base 36": "{{ ('z' * 10**7) | int(base=36) }}",
    "format of 10^10 places": "{{ '{:>10000000000}'.format(1) }}",
    "urlize": "{{ ('http://a.' * 10**7) | urlize }}",
    "join": "{{ (range(99999)|list * 1000) | join('x' * 1000) }}",
    "text doubles": _doubled("'a'", "ns.x ~ ns.x"),
    "list in a list": _doubled("[]", "[ns.x]", "range(99999)"),
    "lipsum": "{{ lipsum(n=10**5, min=10**5, max=10**6) }}",
    "infinity as a whole number": "{{ 'inf' | float | int }}{{ (1e999) | int }}",
    "20 MB": "a" * (20 * 2**20),
    "class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ " + ENTERED + " }}",
    "format of internals": "{{ '{0.__class__.__init__.__globals__}'.format(cycler) }}",
    "globals of the error": "{{ raise_exception.__globals__['__builtins__']['open']('escaped', 'w') }}",
    "include": "{% include '/etc/passwd' %}",
    "its own error of 100 MB": "{{ raise_exception('a' * 10**8) }}",
    "its own error clears the screen": "{{ raise_exception('\x1b[2J\x1b]0;mine\x07 gone') }}",
    "no end of a block": "{% for turn in messages %}{{ turn.content }}",
    "only in an answer": _each("{% if turn.role == 'assistant' %}" + ENDLESS + "{% endif %}"),
    "only in a system turn": _each("{% if turn.role == 'system' %}" + ENDLESS + "{% endif %}"),
    "only in the last row": _each("{% if 'last' in turn.content %}" + ENDLESS + "{% endif %}"),
    "a little in each turn": _each(BUSY * 10),
}


def _saved(text: str | bytes) -> Callable[[Path], object]:
    data = text.encode() if isinstance(text, str) else text
    return lambda folder: (folder / "chat_template.jinja").write_bytes(data)


def _in_config(value: object) -> Callable[[Path], object]:
    def spoil(folder: Path) -> None:
        file = folder / "tokenizer_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": value}))

    return spoil


def _additional(folder: Path) -> None:
    (folder / "additional_chat_templates").mkdir()
    os.mkfifo(folder / "additional_chat_templates/tool_use.jinja")


KIND, NAMED = "chat template", "chat.template"
TEMPLATES = [
    *(Case(name, KIND, _saved(text), NAMED) for name, text in TEXTS.items()),
    Case("only of an open answer", KIND, _saved(TEMPLATE.replace("<|assistant|>", ENDLESS)), NAMED, "grpo"),
    Case("not UTF-8", KIND, _saved(b"\xff\xfe" + TEMPLATE.encode("utf-16-le")), NAMED),
    Case("comment of 30 MB", KIND, _saved("{#" + "a" * (30 * 2**20) + "#}" + TEMPLATE), f"OK or {NAMED}"),
    Case("infinity", KIND, _saved(_each("{% set x = 1e999 %}")), NAMED),  # jinja writes inf, which has no value
    Case("number in place of it", KIND, _in_config(5), NAMED),
    Case("list in place of it", KIND, _in_config([[[]]]), NAMED),
    Case("names without templates", KIND, _in_config([{"name": "default"}, {"template": 1}]), NAMED),
    Case("pipe among additional ones", KIND, _additional, "OK or additional_chat_templates|tool_use"),
]

CASES = [*TEMPLATES, *_cases()]
