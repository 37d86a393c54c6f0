"""What travels to a node is code by value: a node that has none of our files can still say so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")

NODE = """
import sys
sys.modules["launcher"] = None  # as where it was never installed
from ray import cloudpickle
ask = cloudpickle.loads(open(sys.argv[1], "rb").read())
print(ask("json.tool", "[1]", 60.0)[:2])
code, out, err = ask("launcher.no_such_file", "", 60.0)
print(code, "No module named" in err)
print(ask("this", "", 0.001))
"""


@pytest.mark.slow
def test_a_node_without_our_files_answers(tmp_path: Path) -> None:
    write = f"""
from ray import cloudpickle
from launcher.clusters.ray import ask as ray
open({str(tmp_path / "ask")!r}, "wb").write(cloudpickle.dumps(ray._by_value()))
"""
    subprocess.run([sys.executable, "-c", write], check=True)
    ran = subprocess.run([sys.executable, "-c", NODE, tmp_path / "ask"], capture_output=True, text=True, check=False)
    expected = ["(0, '[\\n    1\\n]\\n')", "1 True", "(-9, '', 'it took more than 0.001 s')"]
    assert ran.stdout.splitlines() == expected, ran.stderr
