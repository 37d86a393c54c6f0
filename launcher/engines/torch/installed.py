"""Reports versions and faults of torch and its companions once they are loaded, as one line of JSON.

A process of its own (`python -m launcher.engines.torch.installed`), as loading takes seconds and may end the process: a
library that is not there, a driver that hangs.
"""

from __future__ import annotations

import importlib
import json
import time
from functools import partial
from typing import Any

BEGAN = time.perf_counter()

import torch  # noqa: E402  # what is timed

from launcher.core.user_code import CallFailure, try_call  # noqa: E402

COMPANIONS = ("safetensors.torch", "tokenizers", "transformers", "peft")


def main() -> None:
    print(json.dumps({"torch_s": time.perf_counter() - BEGAN, **_torch(), "broken": _broken()}), flush=True)


def _torch() -> dict[str, Any]:
    cuda = torch.version.cuda
    nccl = try_call(torch.cuda.nccl.version) if cuda else None
    started = try_call(torch.cuda.init) if cuda else None
    available = cuda is not None and not isinstance(started, CallFailure) and torch.cuda.is_available()
    return {
        "torch": torch.__version__,
        "cuda": cuda,
        "cudnn": torch.backends.cudnn.version() if cuda else None,
        "nccl": ".".join(map(str, nccl)) if isinstance(nccl, tuple) else None,
        "why": started.reason if isinstance(started, CallFailure) else "",
        "gpus": [_gpu(index) for index in range(torch.cuda.device_count())] if available else [],
        "kernels": torch.cuda.get_arch_list() if available else [],
    }


def _gpu(index: int) -> dict[str, str]:
    """A matrix product on it fails where the build has no kernels for the card."""
    worked = try_call(partial(_product, index))
    capability = "{}.{}".format(*torch.cuda.get_device_capability(index))
    return {"name": torch.cuda.get_device_name(index), "capability": capability,
            "fault": worked.reason if isinstance(worked, CallFailure) else ""}  # fmt: skip


def _product(index: int) -> None:
    ones = torch.ones(64, 64, device=torch.device("cuda", index))
    total = float((ones @ ones).sum())
    if total != 64**3:
        raise ArithmeticError(f"a product of matrices gave {total}, not {64**3}")


def _broken() -> dict[str, str]:
    """Companions that cannot be loaded, and why."""
    tried = {name: try_call(partial(importlib.import_module, name)) for name in COMPANIONS}
    return {name: found.reason for name, found in tried.items() if isinstance(found, CallFailure)}


if __name__ == "__main__":
    main()
