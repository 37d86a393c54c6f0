"""A platform for verl 0.9.1 on a CPU, so that its own trainers can be tested without a GPU. verl is not changed: every
process of it imports this module, as VERL_USE_EXTERNAL_MODULES names it; VERL_ENGINE_DEVICE=cuda chooses the engines.
"""

from __future__ import annotations

import types
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed
from transformers import AutoModelForTokenClassification
from verl.plugin.platform import PlatformBase, PlatformRegistry, set_platform

DEVICE_MODULE = types.ModuleType("verl_cpu_device")
for name in dir(torch.cpu):
    if not name.startswith("__"):
        setattr(DEVICE_MODULE, name, getattr(torch.cpu, name))
ZEROS = ("max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved")
NOTHING = ("empty_cache", "ipc_collect", "reset_peak_memory_stats", "manual_seed", "manual_seed_all", "synchronize",
           "set_device", "set_rng_state")  # fmt: skip
ANSWERS: dict[str, Any] = {
    **{name: lambda *_, **__: 0 for name in ZEROS},
    **{name: lambda *_, **__: None for name in NOTHING},
    "device_count": lambda: 1, "current_device": lambda: torch.device("cpu"), "is_available": lambda: True,
    "mem_get_info": lambda *_: (8 << 30, 16 << 30), "get_rng_state": lambda *_: torch.get_rng_state(),
    "get_device_name": lambda *_: "CPU",
}  # fmt: skip
for name, answer in ANSWERS.items():
    setattr(DEVICE_MODULE, name, answer)


def always(value: Any) -> Any:
    """A method that returns it."""
    return lambda self, *_, **__: value


@PlatformRegistry.register("cpu")
class CpuPlatform(PlatformBase):
    """What verl asks of a device, answered for the CPU."""

    device_name = vendor_name = "cpu"
    device_module = DEVICE_MODULE
    is_available, is_ipc_supported, device_count = always(True), always(False), always(1)
    current_device = always(torch.device("cpu"))
    get_device_capability = always((None, None))
    communication_backend_name, visible_devices_envvar = always("gloo"), always("CUDA_VISIBLE_DEVICES")
    ray_resource_name, ray_noset_envvars = always("GPU"), always([])
    manual_seed = manual_seed_all = staticmethod(torch.manual_seed)
    nvtx_range = staticmethod(nullcontext)
    set_device = synchronize = empty_cache = set_allocator_settings = always(None)
    profiler_start = profiler_stop = cudart = always(None)


set_platform(CpuPlatform())

_init_process_group = torch.distributed.init_process_group


def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
    """verl asks for `cpu:gloo,<device>:<backend>`, which names the CPU twice here."""
    _init_process_group("gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **kwargs)


torch.distributed.init_process_group = init_process_group

_from_pretrained = AutoModelForTokenClassification.from_pretrained.__func__


def from_pretrained(cls: type, *args: Any, **kwargs: Any) -> Any:
    """verl's critic always takes FlashAttention 2, which a CPU does not have (utils/model.py:649)."""
    if kwargs.get("attn_implementation") == "flash_attention_2":
        kwargs["attn_implementation"] = "sdpa"
    return _from_pretrained(cls, *args, **kwargs)


AutoModelForTokenClassification.from_pretrained = classmethod(from_pretrained)
torch.Tensor.pin_memory = lambda self, *_, **__: self  # FSDP2 pins the memory of a reference that is offloaded
