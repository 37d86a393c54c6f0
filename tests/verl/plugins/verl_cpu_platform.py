"""A platform for verl 0.9.1 on a CPU, so that its own trainers can be tested without a GPU. verl is not changed: every
process of it imports this module, as VERL_USE_EXTERNAL_MODULES names it; VERL_ENGINE_DEVICE=cuda chooses the engines.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
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


@PlatformRegistry.register("cpu")
class CpuPlatform(PlatformBase):
    """What verl asks of a device, answered for the CPU."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = DEVICE_MODULE

    def is_available(self) -> bool:
        return True

    def current_device(self) -> torch.device:
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, message: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None: ...


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
