"""Loads a model's folder without its values, on the meta device: which tensors are missing, misshapen or left over.

A program of its own, as it loads torch and as a config.json may ask for anything: it is started by path, reads one JSON
object on stdin and prints one. Of this project only `light_imports` is loaded, no network is used and no code of the
model runs.
"""

from __future__ import annotations

import gc
import json
import math
import os
import re
import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    gc.disable()  # the process is short: looking for garbage, mostly among imports, would take a quarter of its time

import torch

if __name__ == "__main__":
    from importlib import util

    found = util.spec_from_file_location("light_imports", Path(__file__).parents[1] / "light_imports.py")
    assert found and found.loader
    light_imports = util.module_from_spec(found)
    found.loader.exec_module(light_imports)
    light_imports.leave_out_unused()

import transformers
from transformers import AutoConfig, GenerationConfig
from transformers.initialization import no_init_weights
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

Tensors = Mapping[str, tuple[str, Sequence[int]]]
"""Name -> format by its name in safetensors, and shape."""

FLOATS = {"F64", "F32", "F16", "BF16"}
FORMATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "BOOL": torch.bool,
           "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8}  # fmt: skip
LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks?)\.(\d+)\.")  # as in models/fit.py
MOVED = (r"rotary_emb\.inv_freq$", r"(^|\.)position_ids$")  # kept in weights once; every model computes them now


def set_limits(memory_bytes: int, of_imports: float, cpu_s: float) -> None:
    """Limits beyond the imports: `memory_bytes`, and `of_imports` times their CPU seconds plus `cpu_s`."""
    mapped = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = math.ceil((used.ru_utime + used.ru_stime) * (1 + of_imports) + cpu_s)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_AS, (mapped + memory_bytes,) * 2)


def dry_load(folder: str, loader: str, tensors: Tensors) -> dict[str, Any]:
    """The fields of a `LoadReport` on weights like `tensors` under the folder's config.json."""
    auto, step = getattr(transformers, loader), "config"
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        step = "class"
        if type(config) not in auto._model_mapping:
            return {"step": step, "message": config.model_type}
        step = "build"
        with torch.device("meta"), no_init_weights():
            empty = auto.from_config(
                config, trust_remote_code=False, dtype=torch.float32, attn_implementation="eager"
            )  # eager attention runs on every machine
        step = "load"
        state = {name: torch.empty(tuple(shape), dtype=FORMATS.get(dtype, torch.uint8), device="meta")
                 for name, (dtype, shape) in tensors.items()}  # fmt: skip
        model, info = type(empty).from_pretrained(
            None, config=empty.config, state_dict=state, device_map={"": "meta"}, dtype=torch.float32,
            output_loading_info=True, ignore_mismatched_sizes=True,
        )  # fmt: skip
        step = "generation"
        if (Path(folder) / "generation_config.json").exists():
            GenerationConfig.from_pretrained(folder)
    except MemoryError:
        return {"step": "memory", "lasting": False}
    except Exception as error:  # noqa: BLE001  under a config of others any library may raise anything
        return failed(step, error)
    return report(model, info, tensors)


def failed(step: str, error: BaseException) -> dict[str, Any]:
    """The fields of a `LoadReport` about the exception that was raised."""
    causes = [error]
    while causes[-1].__cause__:
        causes.append(causes[-1].__cause__)
    reported = next((cause for cause in causes if isinstance(cause, ImportError)), error)
    kind = "ImportError" if isinstance(reported, ImportError) else type(reported).__name__
    lasting = not isinstance(reported, ImportError | OSError)  # those depend on the installation or are transient
    return {"step": step, "kind": kind, "message": str(reported)[:2000], "lasting": lasting}


def report(model: Any, info: Mapping[str, Any], tensors: Tensors) -> dict[str, Any]:
    """The fields of a `LoadReport` about a model and its `output_loading_info`."""
    buffers = tuple(name for name, _ in model.named_buffers())
    unexpected, missing = set(info["unexpected_keys"]), set(info["missing_keys"]) - set(buffers)
    mismatched = [(name, list(found), list(expected)) for name, found, expected in info["mismatched_keys"]]
    layer_prefixes = {name[: found.end()] for name in model.state_dict() if (found := LAYER.search(name))}
    surplus = [name for name in unexpected if (found := LAYER.search(name)) and name[: found.end()] in layer_prefixes
               and _is_weight(name, tensors)]  # fmt: skip
    head = model.get_output_embeddings()
    masked = model.config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return {
        "layers": getattr(model.config.get_text_config(), "num_hidden_layers", None),
        "held_layers": max((int(number) for name in tensors for number in LAYER.findall(name)[:1]), default=-1) + 1,
        "expected": len(model.state_dict()),
        "missing": sorted(missing),
        "unexpected": sorted(unexpected),
        "surplus": sorted(surplus),
        "mismatched": sorted(mismatched),
        "not_floats": sorted(_not_floats(model, tensors, unexpected, buffers)),
        "head": next((f"{name}.weight" for name, part in model.named_modules() if part is head), ""),
        "labels": model.config.num_labels,
        "masked": masked and head is not None and not getattr(model.config, "is_decoder", True),
    }  # fmt: skip


def _not_floats(model: Any, tensors: Tensors, unexpected: set[str], buffers: tuple[str, ...]) -> list[tuple[str, str]]:
    """Weights that are not floats, such as quantized ones; keys that the model ignores are not in `unexpected`."""
    ignored = re.compile("|".join((*MOVED, *(model._keys_to_ignore_on_load_unexpected or ()))))
    return [
        (name, dtype)
        for name, (dtype, _) in tensors.items()
        if dtype not in FLOATS and not (name in unexpected or name.endswith(buffers) or ignored.search(name))
    ]


def _is_weight(name: str, tensors: Tensors) -> bool:
    """Not a mask, a table of positions or a scale, which older versions kept beside the weights."""
    dtype, shape = tensors.get(name, ("", ()))
    return dtype in FLOATS and 0 < len(shape) < 4 and math.prod(shape) > 1 and "rotary" not in name


def main() -> int:
    request, output = json.load(sys.stdin), os.dup(1)
    os.dup2(2, 1)  # what libraries print is not the answer
    transformers.utils.logging.set_verbosity_error()
    set_limits(request["memory_bytes"], request["of_imports"], request["cpu_s"])
    result = dry_load(request["folder"], request["loader"], request["tensors"])
    with os.fdopen(output, "w", encoding="utf-8") as file:
        json.dump(result, file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
