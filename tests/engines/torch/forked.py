"""Several ranks from one Python that has imported torch: importing costs seconds, and forking after it nothing."""

from __future__ import annotations

import gc
import importlib
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path


def fork_ranks(count: int, folder: Path, main: Callable[[], int]) -> list[int]:
    """Exit codes of `count` processes that run `main` with their RANK; output is in `folder`/RANK.out and .err."""
    importlib.import_module("transformers.models.llama.modeling_llama")  # every rank would load it
    gc.freeze()
    processes = []
    for rank in range(count):
        process = os.fork()
        if not process:
            os.environ["RANK"] = str(rank)
            for descriptor, name in ((1, "out"), (2, "err")):
                os.dup2(os.open(folder / f"{rank}.{name}", os.O_CREAT | os.O_WRONLY, 0o600), descriptor)
            os._exit(_code(main))
        processes.append(process)
    return [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]


def _code(main: Callable[[], int]) -> int:
    try:
        return main()
    except BaseException:  # noqa: BLE001  # a fork must not return into its parent's code
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
