"""Which package may import which, and where heavy libraries may be imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("without_gc")

BELOW = {
    "config.names": "core spec",
    "hubs": "core",
    "logs.forms": "core",
    "logs": "core logs.forms",
    "spec": "core",
    "algorithms": "core spec",
    "clusters.local": "core spec",
    "data": "core hubs spec",
    "models": "core hubs spec",
    "health": "core spec",
    "monitor": "core spec",
    "sandbox": "core",
    "rewards.worker": "core spec sandbox",
    "clusters.ray": "core spec clusters.local",
    "rewards": "core hubs spec rewards.worker sandbox",
    "text": "core spec models",
    "trackers": "core",
    "logger": "core logs",
    "tools.merge": "core spec models engines.torch.model",
    "clusters.slurm": "core spec clusters.local clusters.ray",
    "engines.torch.model": "core spec models rewards text",
    "engines.torch.parallel": "core spec engines.torch.model",
    "runs": "core spec monitor clusters.slurm",
    "views": "core spec health logs logs.forms monitor runs",
    "config": "core spec config.names sandbox",
    "environments": "core hubs spec data rewards rewards.worker",
    "engines.torch.rollout": "core spec text engines.torch.model engines.torch.parallel",
    "engines.verl.rules": "core spec",
    "engines.verl.config": "core config.names engines.verl.rules",
    "engines.verl": (
        "core config.names spec data logs logs.forms models rewards sandbox engines engines.verl.config "
        "engines.verl.rules"
    ),
    "reports": "core health monitor runs views config",
    "config.reference": "core spec config",
    "engines.torch.train": (
        "core spec algorithms data text engines.torch.model engines.torch.parallel engines.torch.rollout"
    ),
    "preflight.checks": "core health hubs spec data models clusters.ray rewards text runs config",
    "cli": "core hubs logs monitor views",
    "engines": "core clusters.local",
    "engines.torch": (
        "core spec data models rewards text engines.torch.model engines.torch.parallel "
        "engines.torch.rollout engines.torch.train engines"
    ),
    "preflight": "core spec models runs config preflight.checks",
    "tools": ("core hubs spec data models tools.merge runs config preflight preflight.checks"),
    "engines.torch.rollout.vllm": (
        "core spec clusters.local models engines.torch.model engines.torch.parallel engines.torch.rollout "
        "engines.torch.train engines engines.torch"
    ),
    "launch": (
        "core clusters.local health hubs spec data models monitor rewards clusters.slurm runs config trackers "
        "preflight.checks preflight"
    ),
    "tools.importing": ("core spec config.names engines.verl.config engines.verl config preflight.checks sandbox"),
    "cli.commands": (
        "core health hubs logger spec data models monitor tools.merge runs config trackers "
        "config.reference cli views preflight reports engines.torch tools tools.importing launch "
        "preflight.checks server server.routes"
    ),
    "server": "core config logs monitor runs views spec preflight launch",
    "server.routes": "core config config.reference launch logger reports runs views server",
    "": "runs core monitor preflight launch",
}
"""Of each package, those that it may import; whatever is not named here imports nothing of ours."""
ROOMS = {  # where each heavy library may be imported when the file runs
    "torch": ("engines/torch/", "tools/merge/"),
    "transformers": ("engines/torch/", "text/", "tools/merge/"),
    "tokenizers": ("engines/torch/", "text/"),
    "safetensors": ("engines/torch/", "models/weights.py", "tools/merge/"),
    "hydra": (
        "core/composition.py",
        "config/",
        "engines/verl/config/compose.py",
        "engines/verl/validate.py",
    ),
    "omegaconf": (
        "core/composition.py",
        "config/compose.py",
        "config/sources.py",
        "engines/verl/config/compose.py",
        "engines/verl/config/defaults.py",
        "engines/verl/validate.py",
    ),
    "pyarrow": ("data/",),
    "jinja2": ("reports/",),
    "huggingface_hub": ("hubs/", "tools/merge/"),
    "modelscope": ("hubs/",),
    "modelscope_hub": ("hubs/",),
    "math_verify": ("rewards/",),
    "ray": ("clusters/ray/",),
    "vllm": ("engines/torch/rollout/vllm/engine.py",),
    "psutil": (
        "core/machine.py",
        "clusters/ray/listing.py",
        "clusters/local/usage.py",
        "environments/processes.py",
    ),
    "pynvml": (
        "core/machine.py",
        "clusters/local/usage.py",
    ),  # held open for a whole run in the second
    "typer": ("cli/",),
    "rich": ("cli/",),
    "tensorboard": ("trackers/tensorboard.py", "logs/tensorboard.py"),
    "wandb": ("trackers/wandb.py",),
    "mcp": ("environments/mcp.py",),
    "trackio": ("trackers/trackio.py",),
    "mlflow": ("trackers/mlflow.py",),
    "swanlab": ("trackers/swanlab.py",),
    "fastapi": ("server/",),
    "starlette": ("server/",),
    "sqlalchemy": ("server/",),
    "uvicorn": ("server/listening.py",),
    "verl": (),
}
LATE = 74
FOREIGN_PROGRAMS = {"engines/verl/validate.py"}
"""They run in the environment of another program, and import nothing of ours."""
ROOT = Path(__file__).parents[1] / "launcher"
FILES = [path for path in ROOT.rglob("*.py") if path.parent != ROOT or path.stem not in ("__init__", "__main__")]
FILES = [path for path in FILES if path.relative_to(ROOT).as_posix() not in FOREIGN_PROGRAMS]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imported(path: Path, *, late: bool = True) -> set[str]:
    """Modules that `path` imports when it runs; what only the type checker reads is left out, and what functions import
    unless `late`."""
    found: set[str] = set()
    for node in statements(parsed(path)) if late else parsed(path).body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path} imports by dots; say the whole name"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All below a node, at any depth, but for what only the type checker reads; expressions hold none."""
    for inner in ast.iter_child_nodes(node):
        for_types = isinstance(inner, ast.If) and isinstance(inner.test, ast.Name) and inner.test.id == "TYPE_CHECKING"
        if isinstance(inner, ast.stmt | ast.ExceptHandler | ast.match_case) and not for_types:
            yield inner
            yield from statements(inner)


def package_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).parent.parts)


PACKAGES = {package_of(path) for path in FILES}


def package_in(module: str) -> str:
    """The package that holds what `module` names: the longest that it begins with."""
    parts = module.split(".")
    return next((name for end in range(len(parts), 0, -1) if (name := ".".join(parts[:end])) in PACKAGES), "")


def edges(path: Path) -> set[str]:
    """The packages that a file imports, apart from its own; the version number stands above all."""
    names = {name.removeprefix("launcher.") for name in imported(path) if name.startswith("launcher.")}
    return {package_in(name) for name in names if name != "__version__"} - {package_of(path), ""}


def test_packages_import_what_the_table_allows_and_nothing_else():
    found = {name: {there for path in FILES if package_of(path) == name for there in edges(path)} for name in PACKAGES}
    assert {name: set(allowed.split()) for name, allowed in BELOW.items()} == {k: v for k, v in found.items() if v}


def circle(graph: dict[str, set[str]]) -> set[str]:
    """Names that import one another in a circle, directly or not."""
    left = dict(graph)
    while free := [name for name, below in left.items() if not below & left.keys() - {name}]:
        for name in free:
            del left[name]
    return set(left)


def test_no_packages_import_each_other():
    assert not circle({name: set(allowed.split()) for name, allowed in BELOW.items()})


def test_no_files_of_a_package_import_each_other_in_a_circle():
    graph = {}
    for path in FILES:
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        names = {
            there.removeprefix("launcher.") for there in imported(path, late=False) if there.startswith("launcher.")
        }
        graph[name] = {known for there in names for known in (there, there.rpartition(".")[0])}
    for name, below in graph.items():
        below &= graph.keys() - {name}
    assert not circle(graph)


def test_late_imports_are_counted():
    """An import inside a function hides a dependency: each waits for a heavy library that most callers never need."""
    found = {path.relative_to(ROOT).as_posix(): len(imported(path) - imported(path, late=False)) for path in FILES}
    assert sum(found.values()) <= LATE, {name: count for name, count in found.items() if count}


def test_heavy_libraries_stay_in_their_rooms():
    outside = [
        f"{place} imports {module}; it may be imported in {ROOMS[module.split('.')[0]]}"
        for path in FILES
        for place in [path.relative_to(ROOT).as_posix()]
        for module in imported(path)
        if not place.startswith(ROOMS.get(module.split(".")[0], ("",)))
    ]
    assert outside == []
