"""Which secrets are set, by name only: never a value, its length or a part of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from launcher.core.check_result import CheckResult

NAMES = (
    "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "MODELSCOPE_API_TOKEN", "WANDB_API_KEY", "SWANLAB_API_KEY",
    "MLFLOW_TRACKING_TOKEN", "RAY_AUTH_TOKEN",
)  # fmt: skip
FILES = (
    ("HF_TOKEN_PATH", "{HF_HOME}/token"),
    ("", "~/.modelscope/credentials/cookies"),
    ("", "~/.modelscope/credentials/git_token"),
    ("RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token"),
    ("NETRC", "~/.netrc"),
)
"""The variable that names a file, where there is one, and where the file lies otherwise."""


def check(environment: Mapping[str, str] = os.environ) -> list[CheckResult]:
    present = [name for name in NAMES if environment.get(name)]
    wrong = [_misshapen(name, environment[name]) for name in NAMES if name in environment]
    open_to_others = list[CheckResult]()
    for path in _files(environment):
        try:
            mode = path.stat().st_mode
        except OSError:
            continue  # none, or not readable
        present.append(str(path))
        if mode & 0o077:
            message = f"{path} can be read by other users of this machine"
            open_to_others.append(CheckResult("WARN", "secrets", message, f"run chmod 600 {path}"))
    names = ", ".join(present) or "none: only public repositories can be downloaded"
    return [CheckResult("OK", "secrets", names), *(result for result in wrong if result), *open_to_others]


def _misshapen(name: str, value: str) -> CheckResult | None:
    if not value:
        return CheckResult("WARN", name, "is set, and empty", f"unset {name}, or set it to the token")
    if value != value.strip() or value.strip("'\"") != value:
        message = "has spaces, a line end or quotes around the token, which are sent to the server"
        return CheckResult("WARN", name, message, "set it to the bare token")
    return None


def _files(environment: Mapping[str, str]) -> list[Path]:
    home = environment.get("HOME") or "/"
    hub = environment.get("HF_HOME") or f"{environment.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    named = [environment.get(name) or usual.replace("{HF_HOME}", hub) for name, usual in FILES]
    return [Path(home + path[1:] if path.startswith("~/") else path) for path in named]
