"""These tests register a device with torch, for the whole process, so they run by themselves: `make test-device`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the folder out of a run of other tests, too."""
    asked = [config.invocation_params.dir / arg.partition("::")[0] for arg in config.args]
    return None if all(path.resolve().is_relative_to(HERE) for path in asked) else True


sys.path.insert(0, str(HERE))  # for `pretend` and `twins`, as tests are no package
