"""Who may import whom: a file imports only from floors below its own, and heavy libraries stay in their rooms."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

FLOORS = [
    {
        "problems",
        "settings",
        "metrics",
        "files",
        "events",
        "state",
        "checkpoints",
        "foreign",
        "verdicts",
        "machine",
        "secrets",
        "bounded",
        "classes",
        "sieve",
    },
    {"spec", "hubs"},
    {"algorithms", "rewards", "environments", "data", "models", "clusters", "monitor", "tracking"},
    {"engines"},
    {"launch"},
    {"cli", "api"},
]
NOUNS = FLOORS[2] | {"engines.torch", "engines.verl"}
ROOMS = {  # where each heavy library may be imported when the file runs
    "torch": ("engines/torch/",),
    "transformers": ("engines/torch/",),
    "tokenizers": ("engines/torch/",),
    "safetensors": ("engines/torch/", "models/"),
    "hydra": ("launch/resolve.py", "launch/grammar.py", "launch/sources.py"),
    "omegaconf": ("launch/resolve.py", "launch/sources.py"),
    "pyarrow": ("data/",),
    "huggingface_hub": ("hubs/",),
    "modelscope": ("hubs/",),
    "modelscope_hub": ("hubs/",),
    "math_verify": ("rewards/",),
    "ray": ("clusters/ray/",),
    "vllm": ("engines/torch/vllm/engine.py",),
    "psutil": ("machine.py", "clusters/nodes/", "clusters/usage.py", "launch/doctor/"),  # whose processes are whose
    "pynvml": ("machine.py", "clusters/gpu_use.py", "launch/doctor/gpus.py"),  # held open for a whole run in the second
    "typer": ("cli/",),
    "rich": ("cli/",),
    "verl": (),
}
ROOT = Path(__file__).parents[1] / "launcher"
FILES = [path for path in ROOT.rglob("*.py") if path.parent != ROOT or path.stem not in ("__init__", "__main__")]


def floor(module: str) -> int:
    package = module.split(".")[0]
    found = [number for number, floor in enumerate(FLOORS) if package in floor]
    assert found, f"{package} stands on no floor: add it to FLOORS"
    return found[0]


def imported(path: Path) -> set[str]:
    """Modules that `path` imports when it runs, early or late; what only the type checker reads is left out."""
    tree = ast.parse(path.read_text())
    unseen = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in unseen:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path} imports by dots; say the whole name"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def noun(module: str) -> str:
    """The room on a floor: `data`, or `engines.torch`."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "engines" else parts[0]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path):
    here = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for there in {name.removeprefix("launcher.") for name in imported(path) if name.startswith("launcher.")}:
        if there == "__version__" or noun(there) == noun(here):
            continue
        below = floor(there) < floor(here)
        beside = floor(there) == floor(here) == 0  # the ground floor is one room
        assert below or beside, f"{here} imports {there}, which is not below it"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_heavy_libraries_stay_in_their_rooms(path):
    place = path.relative_to(ROOT).as_posix()
    for module in imported(path):
        for room in ROOMS.get(module.split(".")[0], ("",)):
            if place.startswith(room):
                break
        else:
            pytest.fail(f"{place} imports {module}; it may be imported in {ROOMS[module.split('.')[0]]}")


def test_ground_floor_imports_itself_in_no_circle():
    """The ground floor is one room, so its files need an order of their own."""
    graph = {
        name: {there.split(".")[1] for there in imported(ROOT / f"{name}.py") if there.startswith("launcher.")}
        for name in FLOORS[0]
    }
    while graph:
        free = [name for name, below in graph.items() if not below & graph.keys()]
        assert free, f"a circle among {sorted(graph)}"
        for name in free:
            del graph[name]
