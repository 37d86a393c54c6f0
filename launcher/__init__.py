"""rlrun: one command starts, watches and explains a post-training run."""

__version__ = "0.1.0"
