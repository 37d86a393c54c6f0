"""Our reading of launch scripts beside bash itself, which runs each in a folder where every program is a stub."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from script_truth import compare

CASES = sorted((Path(__file__).parent / "cases").glob("*.sh"))
NOT_EQUAL = {
    "stranger_03_case_hostname": "open",  # `case $(hostname)`: the branch depends on the machine
    "stranger_29_unusual_syntax": "refused",  # `for x in a b; { ... }`, which the grammar does not know
}

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is what the reading is compared with")


@pytest.mark.parametrize("script", CASES, ids=lambda path: path.stem)
def test_the_words_are_those_that_bash_hands_over(script):
    found = compare(script)
    assert found.outcome == NOT_EQUAL.get(script.stem, "equal"), (found.reading, found.truth, found.errors)
    if found.outcome != "equal":
        return
    assert not found.environment
