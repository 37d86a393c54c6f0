"""Imports without what a single process on a CPU does not use. `model/dry_load` loads this file by its path."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch


class Uncompiled(ModuleType):
    """torch._dynamo without loading it: nothing is compiled here, so decorators change nothing. Any other attribute
    loads it."""

    __path__ = [str(Path(torch.__file__).with_name("_dynamo"))]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in {"allow_in_graph", "assume_constant_result", "disable"}:
            return lambda found=None, *_, **__: found if callable(found) else lambda function: function
        if name == "graph_break":  # optimizers end a graph before and after a step
            return lambda: None
        if name == "eval_frame":  # a model that is saved is asked whether it is compiled
            return SimpleNamespace(OptimizedModule=())  # it is none
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def leave_out_unused() -> None:
    """Before transformers is imported: neither the compiler nor tensors over several processes are loaded, and peft
    only where a model has adapters."""
    sys.modules.setdefault("torch._dynamo", Uncompiled("torch._dynamo"))
    torch.distributed.is_available = lambda: False  # as in builds without it; transformers then loads nothing of it
    sys.modules.setdefault("torch.distributed.tensor", None)  # type: ignore[arg-type]  # saving weights tries it
    utils: Any = importlib.import_module("transformers.utils")
    original, utils.is_peft_available = utils.is_peft_available, lambda: False
    importlib.import_module("transformers.trainer_utils")  # it has peft's classes for the Trainer, which is not used
    utils.is_peft_available = original
