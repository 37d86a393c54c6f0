"""Code under test: what is right passes, and nothing else does, whatever it tries."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from launcher.rewards.code import Code, code_of, equal_output
from launcher.rewards.code import tests_of as read_tests  # another name: pytest collects what begins so
from launcher.rewards.worker import calls
from launcher.rewards.worker import tests as worker_tests
from launcher.rewards.worker.code import PRELUDE
from launcher.sandbox import confine
from launcher.spec.reward import Answer, score_safely

pytestmark = pytest.mark.skipif(sys.platform != "linux" or bool(confine.missing()), reason="needs Landlock and seccomp")

PROGRAM = json.dumps({"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]})
CALLS = json.dumps({"fn_name": "add", "inputs": [[1, 2], [3, 4]], "outputs": [3, 7]})
ASSERTS = json.dumps(["assert add(1, 2) == 3", "import math\nassert math.isclose(add(0.1, 0.2), 0.3)"])
CHECK = json.dumps({
    "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate([1], [2]) == [1, 2]",
    "entry_point": "add",
})  # fmt: skip
ADDS = "def add(a, b):\n    return a + b"
SUM = "a, b = map(int, input().split())\nprint(a + b)"
REWARD = Code(timeout_s=2.0, workers=2)


def score(code: str, truth: str, reward: Code = REWARD) -> float:
    found = score_safely(reward, [Answer(code, truth)])
    assert list(found.faults) == [""]  # what the code does is its own fault, and no reason to leave its group out
    return found.total[0]


WHAT_PASSES = [
    (SUM, PROGRAM, 1.0),
    (f"So:\n```python\n{SUM}\n```\nDone.", PROGRAM, 1.0),
    (f"{SUM}\nimport sys\nsys.exit(0)", PROGRAM, 1.0),
    (f"{SUM}\nraise ValueError", PROGRAM, 0.0),  # printed, but broke
    ("print(3)", PROGRAM, 0.0),  # only the first
    ("def (", PROGRAM, 0.0),
    ("import threading\nt = threading.Thread(target=lambda: print(sum(map(int, input().split()))))\n"
     "t.start()\nt.join()", PROGRAM, 1.0),
    (ADDS, CALLS, 1.0),
    ("class Solution:\n    def add(self, a, b):\n        return a + b", CALLS, 1.0),
    (ADDS + "\nimport sys\nsys.exit(0)", CALLS, 0.0),  # gone before it is asked
    (ADDS, ASSERTS, 1.0),
    ("def add(a, b): return 3", ASSERTS, 0.0),
    (ADDS, CHECK, 1.0),
    ("class Stack:\n    def __init__(self): self.held = []\n    def push(self, x): self.held.append(x)\n"
     "    def __len__(self): return len(self.held)", '["s = Stack()", "s.push(2)\\nassert len(s) == 1"]', 1.0),
    ("def tidy(x):\n    x.sort()", '["x = [2, 1]", "tidy(x)", "assert x == [1, 2]"]', 1.0),  # in place
    ("def f(): raise KeyError('no')", '["try:\\n    f()\\nexcept KeyError:\\n    ok = True", "assert ok"]', 1.0),
    ("def f(x): return {'a': (1, 2.5, None, {3}, b'x', 10**30)}",
     '["assert f(0) == {\\"a\\": (1, 2.5, None, {3}, b\\"x\\", 10**30)}"]', 1.0),
    ("import numpy as np\ndef f(a, b): return np.isclose(a, b)", '["assert f(1.0, 1.0) == True\\n'
     'assert f(1.0, 2.0) is False"]', 1.0),
    ("import numpy as np\ndef f(a): return (np.array(a) > 1).all()",
     '{"fn_name": "f", "inputs": [[[2, 3]], [[0, 3]]], "outputs": [true, false]}', 1.0),
    ("from fractions import Fraction\nfrom decimal import Decimal\nimport datetime as d\ndef f(x): return {'a': "
     "[Fraction(1, 3), Decimal('0.10'), deque([x]), range(x), bytearray(b'x'), d.date(2024, 2, 29), "
     "d.datetime(2024, 2, 29, 1), d.timedelta(hours=-1)]}",
     json.dumps(["from fractions import Fraction as F\nfrom decimal import Decimal as D\nfrom collections import "
                 "deque\nimport datetime as d\nassert f(2) == {'a': [F(1, 3), D('0.1'), deque([2]), range(2), "
                 "b'x', d.date(2024, 2, 29), d.datetime(2024, 2, 29, 1), d.timedelta(hours=-1)]}"]), 1.0),
    ("def f(x): yield from range(x)", '["assert list(f(3)) == [0, 1, 2] and f(0)"]', 1.0),
    ("from fractions import Fraction\ndef f(x): return [Fraction(1, 2), deque([x])][x]",
     '{"fn_name": "f", "inputs": [[0], [1]], "outputs": [0.5, [1]]}', 1.0),
    ("def f(x): return x", '{"fn_name": "f", "inputs": [[3], [Infinity]], "outputs": [Infinity, Infinity]}', 0.0),
    ("def f(x: List[int]) -> int: return Counter(x)[1]", '["assert f([1, 1]) == 2"]', 1.0),  # not imported
]  # fmt: skip


IN_PROCESS = [case for case in WHAT_PASSES if case[1] != PROGRAM and "sys.exit" not in case[0]]
"""What a process of its own adds nothing to."""


@pytest.mark.parametrize(
    ("code", "truth", "expected"), [*(case for case in WHAT_PASSES if case not in IN_PROCESS), *IN_PROCESS[::6]]
)
def test_what_passes(code: str, truth: str, expected: float) -> None:
    assert score(code, truth) == expected


def passed_here(code: str, truth: str) -> str:
    """How each test goes where this process runs the tests and a thread of it the code."""
    (asked, asking), (ours, theirs), names = socket.socketpair(), os.pipe(), {"__name__": "solution"}
    exec(PRELUDE, names)
    exec(code, names)
    server = threading.Thread(target=calls.serve, args=(asked, names))
    server.start()
    try:
        worker_tests.run(read_tests(truth).payload, asking, theirs)
    finally:
        sys.set_int_max_str_digits(4300)
        os.close(theirs)
        asking.close()
        server.join()
        asked.close()
    with os.fdopen(ours, "rb") as written:
        return written.read().decode()


@pytest.mark.parametrize(("code", "truth", "expected"), IN_PROCESS)
def test_what_passes_without_a_sandbox(code: str, truth: str, expected: float) -> None:
    assert ("0" not in passed_here(code, truth)) == (expected == 1)


def gives(found: Any, expected: str) -> tuple[str, str]:
    return f"def f(x): return {found}", f'{{"fn_name": "f", "inputs": [[0]], "outputs": [{expected}]}}'


@pytest.mark.parametrize(("code", "truth", "passed"), [
    (*gives("9e-7", "0.0"), "1"), (*gives("2e-6", "0.0"), "0"), (*gives("1e6 + 0.9", "1000000"), "1"),
    (*gives("'1.0'", "1.0"), "0"), (*gives("True", "1"), "0"), (*gives("True", "1.0"), "0"),
    (*gives("1.0", "true"), "0"), (*gives("(1, 2)", "[1, 2]"), "1"), (*gives("[1]", "[1, 2]"), "0"),
    (*gives("7", "[7]"), "1"), (*gives("[7]", "[7]"), "1"), (*gives("7", "[[7]]"), "0"),
    (*gives("{1: 2.0}", '{"1": 2}'), "1"), (*gives("{1: 2}", '{"2": 2}'), "0"), (*gives("None", "null"), "1"),
    # as APPS and TACO have them: one argument on each line, and each result in a list
    ("def f(a, b): return 3 if (a, b) == ([1, 2], 'a') else 0",
     json.dumps({"fn_name": "f", "inputs": ['[1, 2]\n"a"', '[]\n"a"'], "outputs": ["[3]", "[3]"]}), "10"),
    ("f = 3", "import math\nx = math.pi\nassert f == 3\nassert f == 4\nprint(f)\nif f: pass", "101"),
    ("class A:\n    n = [5]\n    def __len__(self): return 0", "assert not A()\nassert A().n[0] == 5", "11"),
    ("class A:\n    def __getitem__(self, at): return [4, 5][at]", "assert list(A()) == [4, 5]\nassert A()", "11"),
    ("def f(x): x.update(b=1)\ndef g(x): x.add(2)", "d, s = {}, {1}\nf(d)\ng(s)\nassert d == {'b': 1}\n"
     "assert s == {1, 2}", "1111"),
    ("def f(): return lambda: 1", "assert f() == f()", "0"), ("def f(x): return x", "assert f(print) == print", "0"),
    ("math = 3", "assert math == 3", "1"), ("def f(): raise UnicodeDecodeError('a', b'', 0, 1, '')",
     "try:\n    f()\nexcept RuntimeError:\n    ok = 1\nassert ok == 1", "1"),
])  # fmt: skip
def test_each_test_is_counted_once(code: str, truth: str, passed: str) -> None:
    assert passed_here(code, truth) == passed


EQUALS_ALL = "class E:\n    def __eq__(self, other): return True\n    def __sub__(self, other): return 0\n"
CHEATS = {
    "an object that equals everything": EQUALS_ALL + "def add(a, b): return E()",
    "a number that equals everything": "class E(int):\n    def __eq__(self, other): return True\n"
    "    __hash__ = int.__hash__\ndef add(a, b): return E(99)",
    "a list that lies": "class L(list):\n    def __eq__(self, o): return True\n    def __iter__(self):"
    " return iter([3, 7])\ndef add(a, b): return L([99])",
    "builtins": "import builtins\nbuiltins.AssertionError = int\nbuiltins.isinstance = lambda *a: True\n"
    "builtins.all = lambda *a: True\nbuiltins.float = lambda *a: 3\ndef add(a, b): return 0",
    "a library": "import math, sys\nmath.isclose = lambda *a, **k: True\nsys.modules['math'] = math\n"
    "def add(a, b): return 0",
    "the channel": "import os\nfor n in range(3, 64):\n    try: os.write(n, b'11111111')\n    except OSError: pass\n"
    "def add(a, b): return 0",
    "no debug": "import sys\nsys.flags = None\n__debug__\ndef add(a, b): return 0",
    "exit": "import os\nos._exit(0)",
    "what is in memory": "import gc\ndef add(a, b):\n    for x in gc.get_objects():\n"
    "        for key in ('calls', 'outputs', 'expected', 'payload', 'tests') if type(x) is dict else ():\n"
    "            if type(x.get(key)) is list: return x[key][a // 2][1]\n"
    "    return 0",
    "the tests' file": "import glob\ndef add(a, b):\n    import json\n"
    "    return json.load(open(glob.glob('/tmp/rlrun-tests-*/*.json')[0]))['calls'][0][1]",
}  # fmt: skip


@pytest.mark.parametrize("cheat", CHEATS, ids=str)
def test_nothing_passes_that_does_not_do_it(cheat: str) -> None:
    truth = [CALLS, ASSERTS, CHECK][list(CHEATS).index(cheat) % 3]  # each kind of test meets a third of them
    assert score(CHEATS[cheat], truth) == 0.0


FORBIDDEN = """
open('HERE/new', 'w')
open('HERE/file', 'a')
open('HERE/file').read()
os.listdir('HERE')
os.unlink('HERE/file')
os.mkdir('HERE/new')
os.rename('HERE/file', 'HERE/new')
os.chmod('HERE/file', 0o777)
os.utime('HERE/file')
os.truncate('HERE/file', 0)
os.open('/etc', os.O_PATH)
os.chdir('/')
os.statvfs('/')
open(f'/proc/{pid}/mem', 'rb')
open(f'/proc/{pid}/environ', 'rb')
os.listdir(f'/proc/{pid}/fd')
open('/proc/self/environ', 'rb')
os.kill(pid, 9)
os.kill(pid, 0)
libc.sigqueue(pid, 0, None)
os.pidfd_open(pid)
os.sched_setaffinity(pid, {0})
os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0))
os.sched_setparam(pid, os.sched_param(0))
os.setpriority(os.PRIO_PROCESS, pid, 10)
syscall(251 if x86 else 30, 1, pid, 3 << 13)
resource.prlimit(pid, resource.RLIMIT_NOFILE, (10, 10))
resource.prlimit(pid, resource.RLIMIT_NOFILE)
libc.process_vm_readv(pid, None, 0, None, 0, 0)
syscall(ctypes.c_long(279 if x86 else 239), pid, 0, None, None, None, 0)
fcntl.fcntl(0, fcntl.F_SETOWN, pid)
fcntl.fcntl(0, fcntl.F_SETSIG, 9)
fcntl.fcntl(0, 15, struct.pack('ii', 1, pid))
fcntl.ioctl(0, 0x8901, struct.pack('i', pid))
fcntl.ioctl(0, 0x8902, struct.pack('i', pid))
libc.prctl(1, 0, 0, 0, 0)
libc.ptrace(16, pid, 0, 0)
os.fork()
subprocess.run(['true'])
os.execv('/bin/true', ['true'])
os.setsid()
socket.socket()
socket.socket(socket.AF_UNIX)
socket.socketpair(type=socket.SOCK_DGRAM)
libc.unshare(0x10000000)
libc.inotify_init()
syscall(425, 1, 0)
syscall(ctypes.c_long(162 if x86 else 81))
"""
"""Files, of which HERE may be written and the kernel alone says no; another process of the same user, which confined
this one; signals that the kernel sends when a descriptor is ready (F_SETOWN_EX, FIOSETOWN, SIOCSPGRP), or not any more
when the parent dies; other processes, network, namespaces, io_uring and the disk."""
TRIES = f"""
import asyncio, concurrent.futures, ctypes, fcntl, os, platform, resource, socket, struct, subprocess
libc, pid, x86 = ctypes.CDLL(None, use_errno=True), os.getppid(), platform.machine() == 'x86_64'
syscall = libc.syscall
for line in {FORBIDDEN.strip().splitlines()!r}:
    ctypes.set_errno(0)
    try:
        if eval(line) != -1 or ctypes.get_errno() != 1:
            print('done', line)
    except PermissionError:
        pass
async def later():
    await asyncio.sleep(0)
    return sum(concurrent.futures.ThreadPoolExecutor(2).map(abs, [1, -2]))
there = os.path.getsize(os.__file__) > 0
print(os.getuid(), asyncio.run(later()), there, fcntl.fcntl(0, fcntl.F_GETFD) >= 0, os.isatty(1))
"""
"""Says what of it could be done, then that programs work."""


def tried(here: Path, reward: Code = REWARD) -> list[str]:
    (here / "file").write_text("kept")
    (found,) = reward._pool.ask([{"code": TRIES.replace("HERE", str(here)), "inputs": [""], "all": True}], 30)
    return str(found[0]["out"]).splitlines()


def test_nothing_that_is_forbidden_is_done_and_programs_work(tmp_path: Path) -> None:
    assert tried(tmp_path) == [f"{os.getuid()} 3 True True False"]
    assert [path.name for path in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("while True: pass", "took longer than 0.5 s"),
        ("import os\nos.close(1)\nwhile True: pass", "took longer than 0.5 s"),
        ("while True: print('x' * 100_000)", "printed more than 4194304 bytes"),
        ("x = []\nwhile True: x.append(bytearray(2 ** 20))", "ended with exit code 1"),
        ("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", "took longer than 0.5 s"),
        ("import resource\nresource.setrlimit(resource.RLIMIT_AS, (2 ** 40, 2 ** 40))", "ended with exit code 1"),
        ("import ctypes\nctypes.string_at(0)", "was killed by signal 11"),
        ("import sys\nsys.exit(3)", ""),  # a program may end as it likes; what it printed counts
    ],
)
def test_what_hangs_floods_or_breaks_ends_in_time(code: str, why: str) -> None:
    timeout_s = 0.5 if why.startswith("took") else 10.0  # what breaks takes its time on a busy machine
    reward, begin = Code(timeout_s=timeout_s, workers=1, memory_mb=256), time.monotonic()
    (found,) = reward._pool.ask([{"code": code, "inputs": [""], "all": True}], 30)
    assert found[0]["why"] == why and time.monotonic() - begin < 120


def test_secrets_of_the_environment_are_not_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "x")
    (found,) = Code()._pool.ask([{"code": "import os\nprint(*os.environ)", "inputs": [""], "all": True}], 30)
    assert found[0]["out"] and "SECRET" not in found[0]["out"]


def test_limits_alone_forbid_less(tmp_path: Path) -> None:
    reward = Code(sandbox="limits", timeout_s=0.5, workers=1)
    assert reward.problems() == []
    assert score(SUM, PROGRAM, reward) == 1.0 and score(ADDS, CALLS, reward) == 1.0
    assert score("while True: pass", PROGRAM, reward) == 0.0
    (tmp_path / "file").write_text("kept")
    reads = json.dumps({"inputs": [""], "outputs": ["kept"]})
    assert score(f"print(open('{tmp_path}/file').read())", reads, reward) == 1.0


def test_a_system_that_cannot_forbid_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    confine.missing.cache_clear()
    monkeypatch.setattr(confine, "landlock_version", lambda: 0)
    assert list(map(str, Code().problems())) == [
        "reward.sandbox: this system has no Landlock, which forbids files (Linux 5.13 and later, where it is not"
        " switched off); use another system, or reward.sandbox=limits, which does not forbid it"
    ]
    assert Code(sandbox="limits").problems() == []
    monkeypatch.undo()
    confine.missing.cache_clear()


def unlike(result: str, expected: str) -> tuple[str, str]:
    """A function whose result of 0 cannot be compared."""
    truth = f'{{"fn_name": "f", "inputs": [[0], [1]], "outputs": [{expected}, 7]}}'
    return f"def f(x): return 7 if x else {result}", truth


@pytest.mark.parametrize(("code", "truth"), [
    ("a, b = map(int, input().split())\nprint(3)", PROGRAM), ("def add(a, b): return 3", CALLS),
    unlike("10**400", "1.5"), unlike("{b'a': 1}", '{"a": 1}'), unlike("{(1, b'a'): [1]}", '{"a": 1}'),
])  # fmt: skip
def test_one_of_two_tests_is_half_of_the_score(code: str, truth: str) -> None:
    assert score(code, truth, Code(partial=True, timeout_s=2.0, workers=1)) == 0.5


def test_many_answers_keep_their_order() -> None:
    codes = [f"print({n % 3} + sum(map(int, input().split())))" for n in range(12)]
    found = score_safely(Code(workers=4), [Answer(code, PROGRAM) for code in codes])
    assert list(found.total) == [float(n % 3 == 0) for n in range(12)]


# ---- ground truths


@pytest.mark.parametrize(
    ("truth", "reason"),
    [
        (None, "has no ground truth, which for reward Code holds the tests"),
        ("", "has no ground truth, which for reward Code holds the tests"),
        ("42", "ground truth '42' holds no tests; expected inputs and outputs, or asserts"),
        ('{"inputs": ["1"], "outputs": []}',
         "ground truth holds no pairs; expected two lists, inputs and outputs, of one length"),
        ('{"fn_name": "f", "inputs": ["x"], "outputs": ["1"]}',
         "ground truth holds 'x' -> '1', which is not JSON"),
        ("def (", None),
        ("assert f(1) == 2", ""),
        (PROGRAM, ""), (CALLS, ""), (ASSERTS, ""), (CHECK, ""),
    ],
)  # fmt: skip
def test_a_truth_without_tests_is_named(truth: str | None, reason: str | None) -> None:
    found = REWARD.unscorable_reason(Answer("", truth))
    assert found == reason or (reason is None and "is neither JSON nor Python" in found)
    assert bool(score_safely(REWARD, [Answer("x", truth)]).faults[0]) == bool(found)


@pytest.mark.parametrize(
    ("printed", "expected", "equal"),
    [
        ("3\n", "3", True), ("3  \n\n", "3\n", True), ("a\nb", "a \nb", True), ("3\n4", "3", False),
        ("0.30000000000000004", "0.3", True), ("0.31", "0.3", False), ("3.0", "3", False), ("3", "3.0", True),
        ("nan", "0.5", False), ("1 2", "12", False), ("", "", True), ("x", "", False),
    ],
)  # fmt: skip
def test_outputs_are_compared_line_by_line(printed: str, expected: str, equal: bool) -> None:
    assert equal_output(printed, expected) is equal


@pytest.mark.parametrize(
    ("response", "code"),
    [
        ("```python\nx = 1\n```", "x = 1\n"),
        ("```\nx = 1\n```\nor\n```py\nx = 2\n```\nend", "x = 2\n"),  # the last
        ("```python\nx = 1", "x = 1"),  # cut
        ("  ```python\n  x\n  ```", "  x\n"),
    ],
)
def test_the_last_block_is_the_code(response: str, code: Any) -> None:
    assert code_of(response) == code


def test_a_rows_own_solution_is_gold() -> None:
    answer = Answer("", PROGRAM, extra_info={"solution": SUM})
    reference_answer = REWARD.reference_response(answer)
    assert reference_answer is not None and score(reference_answer, PROGRAM) == 1.0
    assert REWARD.reference_response(Answer("", PROGRAM)) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_a_user_without_rights_has_the_same_sandbox() -> None:
    """Python itself must be readable to that user, so a system without one in a common place skips."""
    python = "/usr/bin/python3"
    if not Path(python).exists():
        pytest.skip("no common Python")
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(Path(__file__).parents[2] / "launcher", Path(folder) / "launcher")
        os.chmod(folder, 0o755)
        here = Path(folder) / "here"  # its own: any name in /tmp may be somebody's
        here.mkdir()
        (here / "file").write_text("kept")
        for path in (here, here / "file"):
            path.chmod(0o777)  # so that only the sandbox says no
        code = (
            "from launcher.rewards.pool import Pool\n"
            "p = Pool('code', {'timeout_s': 20.0, 'cpu_s': 20, 'memory_bytes': 512 << 20, 'strict': True}, 1)\n"
            f"asked = {{'code': {TRIES.replace('HERE', str(here))!r}, 'inputs': [''], 'all': True}}\n"
            "print(p.ask([asked], 40)[0][0]['out'], end='')"
        )
        ran = subprocess.run(
            [python, "-c", code], cwd=folder, env={"PYTHONPATH": folder}, user=65534, group=65534, extra_groups=[],
            capture_output=True, text=True,
        )  # fmt: skip
        assert [(path.name, path.read_text()) for path in here.iterdir()] == [("file", "kept")]
    assert ran.stdout.splitlines() == ["65534 3 True True False"], ran.stdout + ran.stderr
