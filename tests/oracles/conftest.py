"""`make oracles` runs these tests where verl and TRL are installed; elsewhere they are skipped."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for `compared`, as tests are no package
