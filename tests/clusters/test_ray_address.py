"""Which cluster is meant, and by which token."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.clusters.ray.listing import head_address
from launcher.core.problems import Problems

VARIABLES = ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


@pytest.fixture(autouse=True)
def shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))


def test_an_address_is_taken_before_that_of_the_shell_and_that_before_this_machines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(Problems, match="this machine is in no cluster"):
        head_address("auto")
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("mine:3")  # as `ray start` does
    assert head_address("auto") == "mine:3"
    monkeypatch.setenv("RAY_AUTH_TOKEN", "x")
    monkeypatch.setenv("RAY_ADDRESS", "other:2")
    assert (head_address("auto"), head_address("h:1")) == ("other:2", "h:1")


@pytest.mark.parametrize(
    ("variables", "file", "told"),
    [
        ({"RAY_AUTH_TOKEN_PATH": "~/mine"}, None, "mine: no such file or directory; use a copy of the head's token"),
        ({"RAY_AUTH_TOKEN_PATH": "~/mine"}, " \n", "mine: holds no token"),
        ({"RAY_AUTH_MODE": "TOKEN"}, None, ".ray/auth_token: no such file"),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": ""}, None, ".ray/auth_token: no such file"),
        ({"RAY_AUTH_TOKEN_PATH": "~/mine"}, "secret", ""),
        ({"RAY_AUTH_MODE": "disabled"}, None, ""),
    ],
)
def test_a_token_that_is_not_to_be_read_is_named(
    variables: dict[str, str], file: str | None, told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ray would abort, with the stack of its C++."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if file is not None:
        (tmp_path / "mine").write_text(file)
    try:
        head_address("h:1")
    except Problems as problems:
        assert told and told in problems.lines[0]
    else:
        assert not told
