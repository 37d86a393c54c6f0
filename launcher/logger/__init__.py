"""Reports of any training script: to `rlrun serve`, to W&B, or to both.

    from launcher.logger import DualLogger, init_logging

A call appends one line to a file, the spool; a subprocess (`sender`) sends the lines.
"""

from launcher.logger.dual_logger import DualLogger, init_logging

__all__ = ["DualLogger", "init_logging"]
