"""A pretend accelerator: a second device for the tests of the engine, on a machine that has none.

Importing this registers a device named `pretend` by PyTorch's Python backend hooks (experimental in torch 2.13), for
the whole process. A tensor on it reports `device='pretend:0'`, holds a CPU tensor and is computed there. As on CUDA, an
operation that gets tensors of the device and of the CPU raises `RuntimeError`, and numpy is refused. Memory is counted.

What it lacks: autocast, streams and events, pinned memory, collectives, FSDP2, and `torch.save` of its tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode

NAME = "pretend"
DEVICE = torch.device("cpu")  # `pretend:0` once the name is registered, below
CPU = torch.device("cpu")

COPIES = {"aten::_to_copy", "aten::copy_", "aten::_copy_from"}
"""May be given tensors of both devices."""


@dataclass
class Use:
    """What a program did with the device."""

    meetings: list[str] = field(default_factory=list)
    """Operations that were given tensors of both devices; each has raised."""
    bytes: int = 0
    """Held now."""
    peak_bytes: int = 0
    """Held at most."""


_use = Use()


class _Block:
    """Memory of the device, as long as any tensor lies in it."""

    __slots__ = ("__weakref__", "size", "use")

    def __init__(self, size: int) -> None:
        self.use, self.size = _use, size
        self.use.bytes += size
        self.use.peak_bytes = max(self.use.peak_bytes, self.use.bytes)

    def __del__(self) -> None:
        self.use.bytes -= self.size


_blocks: WeakValueDictionary[int, _Block] = WeakValueDictionary()
"""By the address of the storage that is held."""


def _block(held: Tensor) -> _Block:
    storage = held.untyped_storage()
    found = _blocks.get(storage._cdata)
    if found is None:
        found = _blocks[storage._cdata] = _Block(storage.nbytes())
    return found


class DeviceTensor(torch.Tensor):
    """A tensor on the device. `held` is the CPU tensor that it is computed with."""

    held: Tensor
    block: _Block

    @staticmethod
    def __new__(cls, held: Tensor) -> DeviceTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls, held.size(), strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype,
            device=DEVICE, requires_grad=False,
        )  # fmt: skip
        made.held, made.block = held, _block(held)
        return made

    def __init__(self, held: Tensor) -> None:
        """`__new__` has done it; torch's own would take the arguments for a shape."""

    def __repr__(self) -> str:  # type: ignore[override]
        return f"DeviceTensor({self.held!r})"

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(op, args, kwargs or {})

    def tolist(self) -> Any:
        return self.held.tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"cannot convert a tensor on {DEVICE} to numpy; use .cpu() first")


class Mode(TorchDispatchMode):
    """Also computes what is given no tensor of the device: `torch.ones(3, device='pretend')`."""

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(op, args, kwargs or {})


@contextmanager
def used() -> Iterator[Use]:
    """The device may be used meanwhile."""
    global _use
    before, _use = _use, Use()
    swaps = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)  # `Module.to` keeps parameters, as with real devices
    try:
        with Mode():
            yield _use
    finally:
        torch.__future__.set_swap_module_params_on_conversion(swaps)
        _use = before


def compute(op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute `op` with the CPU tensors that its arguments hold; results are on the device that torch would put them.

    Raises `RuntimeError` where the arguments are on the device and on the CPU; only numbers ([] tensors) may be.
    """
    given = [*_tensors(args), *_tensors(kwargs.values())]
    ours = [x for x in given if isinstance(x, DeviceTensor)]
    name, target = op._schema.name, kwargs.get("device")
    target = None if target is None else torch.device(target)
    if ours and name not in COPIES:
        _check_meeting(name, given)
    kwargs = {key: _mapped(_held, value) for key, value in kwargs.items()}
    if target is not None and target.type == NAME:
        kwargs["device"] = CPU
    found = op(*(_mapped(_held, value) for value in args), **kwargs)
    for x in ours:
        if x.shape != x.held.shape:
            raise NotImplementedError(f"{name} changes the shape of a tensor on {DEVICE}")
    known = {id(_held(x)): x for x in given}  # what an operation in place returns
    on_device = target.type == NAME if target is not None else bool(ours)

    def placed(x: Tensor) -> Tensor:
        return known[id(x)] if id(x) in known else DeviceTensor(x) if on_device else x

    return _mapped(placed, found)


def _held(x: Tensor) -> Tensor:
    return x.held if isinstance(x, DeviceTensor) else x


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """Those of an operation's arguments, which are tensors and lists of tensors among other things."""
    for x in values:
        if isinstance(x, Tensor):
            yield x
        elif isinstance(x, (list, tuple)):
            yield from (one for one in x if isinstance(one, Tensor))


def _mapped(change: Callable[[Tensor], Tensor], x: Any) -> Any:
    """An argument or result with its tensors changed."""
    if isinstance(x, Tensor):
        return change(x)
    if isinstance(x, (list, tuple)) and any(isinstance(one, Tensor) for one in x):
        return type(x)([change(one) if isinstance(one, Tensor) else one for one in x])
    return x


def _check_meeting(name: str, given: list[Tensor]) -> None:
    shapes = [tuple(x.shape) for x in given if not isinstance(x, DeviceTensor) and x.dim() and x.device == CPU]
    if shapes:
        _use.meetings.append(f"{name} {shapes}")
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found {DEVICE} and cpu: {name} with {shapes}"
        )


# ---- how torch knows the device


class _Backend:
    """The module `torch.pretend`."""

    def is_available(self) -> bool:
        return True

    is_initialized = is_built = is_available

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def manual_seed_all(self, seed: int) -> None:
        """The device draws from the CPU's generator."""

    def get_rng_state(self, device: Any = None) -> Tensor:
        return torch.zeros(8, dtype=torch.uint8)

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        """As above."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    _held(target).copy_(_held(source))
    return target


def _kernels(library: torch.library.Library) -> None:
    """What torch calls past every dispatch mode: in `torch.tensor`, and where C++ wants one number."""

    def number(x: Tensor) -> Any:
        return _held(x).item()

    def empty(size: Any, dtype: Any = None, *_: Any, **__: Any) -> Tensor:
        return DeviceTensor(torch.empty(size, dtype=dtype))

    def empty_strided(size: Any, stride: Any, dtype: Any = None, *_: Any, **__: Any) -> Tensor:
        return DeviceTensor(torch.empty_strided(size, stride, dtype=dtype))

    def silu_backward(grad: Tensor, x: Tensor) -> Tensor:
        """Torch would compute it in several steps, which round otherwise, for a device that has none of its own."""
        return DeviceTensor(torch.ops.aten.silu_backward(_held(grad), _held(x)))

    for name, kernel in {
        "empty.memory_format": empty, "empty_strided": empty_strided, "_copy_from": _copy_from,
        "_local_scalar_dense": number, "silu_backward": silu_backward,
    }.items():  # fmt: skip
        library.impl(name, kernel, "PrivateUse1")


backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Backend())
DEVICE = torch.device(NAME, 0)
_aten = torch.library.Library("aten", "IMPL")
_kernels(_aten)
