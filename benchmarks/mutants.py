"""Mutants of the core, drawn with a seed: each changes one operator or number, and the tests must notice.

The tests run once under coverage, which says for each line which tests pass through it in their own process; of each
mutant only these run, until one fails: at most 100, first those that pass through the fewest lines. A line that no
test passes through in its own process counts as survived. What is slow is bounded in CPU seconds, so a busy machine
changes no verdict.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

CORE = ("algorithms", "core", "data", "health", "rewards", "runs", "spec", "text")
MORE_TESTS = ("logs", "monitor")  # their tests pass through health and core
NUMBER, MOST_TESTS, CPU_S = 60, 100, 600
COMPARISONS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
               ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is}  # fmt: skip
ARITHMETIC = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
              ast.Mod: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    path: str
    line: int
    before: str
    after: str
    start: int
    end: int  # bytes of the file that `after` replaces


def changed(node: ast.AST) -> ast.expr | None:
    """The expression with one operator or number changed; None where there is nothing to change."""
    match node:
        case ast.Compare(left, [operator, *more], comparators) if type(operator) in COMPARISONS:
            return ast.Compare(left, [COMPARISONS[type(operator)](), *more], comparators)
        case ast.BinOp(left, operator, right) if type(operator) in ARITHMETIC:
            return ast.BinOp(left, ARITHMETIC[type(operator)](), right)
        case ast.BoolOp(operator, values):
            return ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values)
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            return operand
        case ast.Constant(bool() as value):
            return ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            return ast.Constant(value + 1)
    return None


def in_functions(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node of a function's body, apart from annotations, defaults and what is inside f-strings."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for statement in function.body:
                nodes: list[ast.AST] = [statement]
                while nodes:
                    node = nodes.pop()
                    yield node
                    if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AnnAssign | ast.JoinedStr):
                        nodes += ast.iter_child_nodes(node)


def mutants_of(root: Path, path: Path) -> list[Mutant]:
    data = path.read_bytes()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node in in_functions(ast.parse(data)):
        if not isinstance(node, ast.expr) or (after := changed(node)) is None or node.end_lineno is None:
            continue
        start, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + (node.end_col_offset or 0)
        text = f"({ast.unparse(ast.fix_missing_locations(after))})"
        found.append(Mutant(str(path.relative_to(root)), node.lineno, data[start:end].decode(), text, start, end))
    return found


def run_tests(tree: Path, arguments: list[str], *, limited: bool = True) -> subprocess.CompletedProcess[str]:
    def limit() -> None:
        if limited:
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))

    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, preexec_fn=limit)


def covering_tests(tree: Path, kept: Path) -> dict[str, dict[str, list[str]]]:
    """For each file and line the tests that pass through it, from the file `kept` where there is one."""
    if kept.exists():
        return json.loads(kept.read_text())
    folders = [f"tests/{name}" for name in (*CORE, *MORE_TESTS) if (tree / "tests" / name).is_dir()]
    report = ["--cov=launcher", "--cov-context=test", "--cov-report="]
    outcome = run_tests(tree, [*folders, *report], limited=False)
    if outcome.returncode:
        sys.exit(f"the tests fail without a mutant:\n{outcome.stdout[-3000:]}")
    as_json = ["json", "-q", "--show-contexts", "-o", "coverage.json"]
    subprocess.run([sys.executable, "-m", "coverage", *as_json], cwd=tree, check=True)
    files = json.loads((tree / "coverage.json").read_text())["files"]
    found = {
        path: {line: [name.rpartition("|")[0] for name in names if name] for line, names in facts["contexts"].items()}
        for path, facts in files.items()
    }
    kept.write_text(json.dumps(found))
    return found


def is_killed(tree: Path, mutant: Mutant, chosen: Sequence[str]) -> bool:
    if not chosen:
        return False
    path = tree / mutant.path
    data = path.read_bytes()
    path.write_bytes(data[: mutant.start] + mutant.after.encode() + data[mutant.end :])
    try:
        return run_tests(tree, ["-x", *chosen]).returncode != 0
    finally:
        path.write_bytes(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--coverage", type=Path, help="a file that keeps which tests pass through which line")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name) / "tree"
        unneeded = shutil.ignore_patterns(".venv*", ".git", "__pycache__", "*.safetensors")
        shutil.copytree(Path(__file__).parents[1], tree, ignore=unneeded)
        tests = covering_tests(tree, options.coverage or tree / "tests.json")
        paths = [path for folder in CORE for path in sorted((tree / "launcher" / folder).rglob("*.py"))]
        everything = [mutant for path in paths for mutant in mutants_of(tree, path)]
        lines, survived = Counter(name for of in tests.values() for names in of.values() for name in names), 0
        for mutant in random.Random(options.seed).sample(everything, NUMBER):
            passing = {*tests.get(mutant.path, {}).get(str(mutant.line), ())}
            killed = is_killed(tree, mutant, sorted(passing, key=lambda name: (lines[name], name))[:MOST_TESTS])
            survived += not killed
            verdict = "killed  " if killed else "survived"
            print(f"{verdict} {mutant.path}:{mutant.line}  {mutant.before!r} -> {mutant.after!r}", flush=True)
    print(f"{NUMBER - survived} of {NUMBER} killed, of {len(everything)} mutants, seed {options.seed}")


if __name__ == "__main__":
    main()
