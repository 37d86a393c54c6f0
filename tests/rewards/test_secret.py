"""What looks like a secret is not kept with a run, and what does not is left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launcher.rewards.python import Python


@pytest.mark.parametrize(
    ("kwargs", "named"),
    [
        ({"api_key": "sk-1"}, ["api_key"]),
        ({"apiKey": "sk-1"}, ["apiKey"]),
        ({"judge": {"auth_token": "x"}}, ["judge.auth_token"]),  # further down
        ({"password": "x", "cookie": "y"}, ["password", "cookie"]),
        ({"api_key": ""}, []),  # nothing is kept
        ({"max_tokens": 5, "tokenizer": "x", "author": "y", "response_key": "z", "token": 7}, []),
    ],
)
def test_a_secret_of_a_function_is_named(kwargs: dict[str, Any], named: list[str], tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("def compute_score(solution_str, **kwargs): return 1.0")
    assert list(map(str, Python(path=str(mine), kwargs=kwargs).problems())) == [
        f"reward.kwargs: {name} would be kept with the run; read it from os.environ in the function" for name in named
    ]
