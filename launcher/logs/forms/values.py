"""Numbers as logs write them, and which metric names are measurements."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from launcher.core.metric_aliases import canonical
from launcher.core.metrics import catalogue

# Every repetition is bounded and every pattern anchored where it is used: the time to read a line is linear in it.
_NUMBER = r"[-+]?(?:(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})(?:[eE][-+]?[0-9]{1,4})?|nan|inf(?:inity)?)"
_PREFIX = re.compile(_NUMBER.replace("nan|inf", r"\.?nan|\.?inf"), re.IGNORECASE)  # with a point those of YAML
NUMBER = re.compile(_NUMBER + r"(?![A-Za-z_])", re.IGNORECASE)
_WRAPPED = re.compile(rf"[A-Za-z_][\w.]{{0,40}}\(\s{{0,4}}\[?({_NUMBER})\]?(?:,[^()]{{0,100}})?\)", re.IGNORECASE)
_GROUPS = r"[1-9][0-9]{0,2}(?:,[0-9]{3}){1,8}(?![0-9])"
_GROUPED = re.compile(rf"[-+]?{_GROUPS}(?:\.[0-9]{{1,40}})?")
_COMMA_NUMBER = r"([-+]?[0-9]{1,15}),([0-9]{1,40}(?:[eE][-+]?[0-9]{1,4})?)"
_DECIMAL_COMMA = re.compile(_COMMA_NUMBER + r"(?![0-9,\])]|\.[0-9])")
_COMMA_VALUE = re.compile(rf"(?<=[:= ])(?!{_GROUPS}){_COMMA_NUMBER}(?=,?(?:\s|$))")
_POINT = re.compile(r"[0-9]\.[0-9]")
SPREAD = r" ?(?:±|\+/?-) ?[-+.\w]{1,20}%?"
"""What stands behind a mean: `0.20 ± 0.03`."""
_SCALE = re.compile(r"([kKM])(?!\w)")
_SCALES = {"k": 1e3, "K": 1e3, "M": 1e6}  # without G, the unit of memory, which metrics have in gigabytes
_CLOCK = re.compile(r"[:_][0-9]|-[0-9]{2}-")
_MAX_TEXT = 1_000
MOST_STEPS = 2**62
"""From here on, a number is not a step."""
_SCALED = re.compile(r"(.{1,300})\(1e-([0-9]{1,2})\)")


def to_number(text: str) -> float | None:
    """`0.5`, `-1e-06`, `nan`, `'0.06'`, `np.float64(0.5)`, `tensor(0.5, device='cuda:0')`, `12,345`, `0,517`, `1.2k`,
    `45.6%`; None for other texts."""
    text = text.strip().strip("'\"`*").removesuffix("%")
    number = leading_number(text) if len(text) <= _MAX_TEXT else None
    return number[0] if number and number[1] == len(text) else None


def leading_number(text: str) -> tuple[float, int] | None:
    """(number at the beginning of a text, index of its end): `0.5```, `3.21s`, `np.float64(0.5)Training`. None for a
    time or date, as `1:02:03` and `2025-05-01`."""
    if match := _WRAPPED.match(text):
        return float(match[1]), match.end()
    match = _GROUPED.match(text) or _PREFIX.match(text)
    if not match or _CLOCK.match(text, match.end()):
        return None
    digits, end = match[0].replace(",", ""), match.end()
    after = text[end : end + 1]
    if after == "," and "," not in match[0] and (decimal := _DECIMAL_COMMA.match(text)):
        return float(f"{decimal[1]}.{decimal[2]}"), decimal.end()
    number = float(digits if digits[-1] <= "9" else digits.replace(".", ""))  # YAML writes .nan
    scale = _SCALE.match(text, end) if after in _SCALES else None
    return (number * _SCALES[scale[1]], scale.end()) if scale else (number, end)


def with_points(line: str) -> str:
    """A line with decimal points for its decimal commas; one with a point has none, and `gpus: 0,1` is a list."""
    return line if "," not in line or _POINT.search(line) else _COMMA_VALUE.sub(r"\1.\2", line)


def unscaled(name: str, value: float) -> tuple[str, float]:
    """(name, value) without a unit in the name: verl's old `actor/lr(1e-4)` is in units of 1e-4."""
    match = _SCALED.fullmatch(name)
    return (match[1], value / 10 ** int(match[2])) if match else (name, value)


_PREFIXES = (
    "eval_", "eval/", "train_loss", "train_runtime", "train_samples_per", "train_steps_per",
    "objective/", "rewards/", "val-core/", "val-aux/", "val/",
    "actor/", "critic/", "loss/", "test_score/", "train/", "timing_s/", "rollout/",
)  # fmt: skip


def _evidence(name: str) -> str:
    """The catalogue's `evidence` of the metric of this name; empty where it is unknown."""
    row = catalogue().get(canonical(name))
    return row.evidence if row else ""


def is_beside_step(name: str) -> bool:
    """Whether this metric, which elsewhere may be a setting, makes a line that begins with a step one of metrics."""
    return _evidence(name) == "beside step"


@lru_cache(maxsize=2**12)
def is_measurement(name: str) -> bool:
    """Whether a metric of this name is a measurement of training, not a setting, a count or a clock: lines of loose
    form are read only if they have one."""
    plain = name.replace(" ", "_").casefold()
    last = re.split("[./]", re.sub("^(?:avg|mean|average)_|[./_](?:avg|mean)$", "", plain))[-1]
    of_path = "/" in plain and last.endswith(("_loss", "_reward"))
    return of_path or plain.startswith(_PREFIXES) or "line" in (_evidence(name), _evidence(last))


def of_evaluation(name: str) -> bool:
    """Whether a metric name is of a trainer's evaluation."""
    return name.casefold().startswith(("eval_", "test_", "val_", "eval/", "val/", "validation"))


def after_training(name: str) -> bool:
    """Whether a metric is of an evaluation or of the whole training: a dict of only such metrics makes no step."""
    return of_evaluation(name) or name.startswith("train_") or name in ("epoch", "total_flos")


def evaluated(metrics: Mapping[str, float], labelled: bool = False) -> dict[str, float]:
    """Metrics of an evaluation, with `eval_` put before names without a prefix; empty unless a name is that of an
    evaluation, or the metrics are `labelled` as such."""
    if not labelled and not any(map(of_evaluation, metrics)):
        return {}
    return {name if after_training(name) else f"eval_{name}": value for name, value in metrics.items()}
