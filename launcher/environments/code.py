"""Python in the sandbox as a tool: `environment=code`. A program can read Python's own files; it can neither write, nor
reach the network, nor other processes (`launcher.sandbox.confine`). The run's reward scores the last answer.
"""

from __future__ import annotations

from launcher.core.problems import Problem
from launcher.core.settings import settings
from launcher.core.user_code import CallFailure
from launcher.environments.several import SeveralTurns
from launcher.environments.tools import ToolSession
from launcher.rewards.code import Code
from launcher.spec.data import Row
from launcher.spec.environment import Session

PROGRAM = """import sys, traceback
try:
    exec(compile({code!r}, "program.py", "exec"), {{"__name__": "__main__"}})
except Exception as error:
    traceback.print_exception(error.with_traceback(error.__traceback__.tb_next), file=sys.stdout)
"""


class CodeTools:
    def __init__(self, sandbox: Code) -> None:
        self._sandbox = sandbox

    def reset(self, row: Row) -> None:
        """Nothing to reset: each program runs in a new process."""

    def run_python(self, code: str) -> str:
        """Run a Python program, and read what it prints. Nothing is left of the programs before it."""
        result = self._sandbox.output_of(PROGRAM.format(code=code))
        if isinstance(result, CallFailure):
            raise RuntimeError(result.reason)
        output, problem = result
        if problem:
            raise ValueError(f"the program {problem}")
        return output


@settings
class CodeEnvironment(SeveralTurns):
    """Questions that a program helps to answer."""

    sandbox: Code = Code()
    """Limits of a program: `timeout_s`, `memory_mb`, and `sandbox`, as of reward=code."""

    def problems(self) -> list[Problem]:
        return [problem.within("environment.sandbox") for problem in self.sandbox.problems()]

    def session(self) -> Session:
        return ToolSession(CodeTools(self.sandbox), self)
