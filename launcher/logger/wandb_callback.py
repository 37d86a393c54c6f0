"""The name under which guides of the training platform import the logger; it is `launcher.logger`."""

from launcher.logger import DualLogger, init_logging

__all__ = ["DualLogger", "init_logging"]
