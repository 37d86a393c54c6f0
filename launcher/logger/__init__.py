"""Reports of any training script: to `rlrun serve`, to W&B, or to both.

    from launcher.logger import DualLogger, init_logging

A call appends one line to a file, the spool; a process of its own sends what stands there (`sender`).
"""

from launcher.logger.dual_logger import DualLogger, init_logging

__all__ = ["DualLogger", "init_logging"]
