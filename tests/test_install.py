"""An installed package is whole: conf/ and recipes/ come along and `rlrun plan` works far from the clone."""

from __future__ import annotations

import json
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize("trains", [False, pytest.param(True, marks=pytest.mark.long)])
def test_wheel_in_a_clean_environment(tmp_path, trains):
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", tmp_path, ROOT]
    subprocess.run(build, check=True)
    (wheel,) = tmp_path.glob("rlrun-*.whl")
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    inside = next((tmp_path / "env").glob("lib/python*/site-packages"))
    install = ["install", "--quiet", "--no-deps", "--no-compile", "--target", inside, wheel]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True)
    # what the package depends on is lent by this environment, but not the clone that is installed here
    (inside / "lent.pth").write_text("\n".join(site.getsitepackages()))
    code = "import launcher; print(launcher.__file__)"
    found = subprocess.run([python, "-c", code], cwd=tmp_path, text=True, capture_output=True, check=True).stdout
    assert found.startswith(str(inside))
    show = [python, "-m", "launcher", "config", "show", "--json", "algorithm.kl_loss_coef"]
    ran = subprocess.run(show, cwd=tmp_path, text=True, capture_output=True, check=True)
    (setting,) = json.loads(ran.stdout)[0]["settings"]
    assert "reference model" in setting["says"], "the strings under fields are read from the installed source"
    plan = [python, "-m", "launcher", "plan", "--recipe", "sft", "--source"]
    ran = subprocess.run(plan, cwd=tmp_path, text=True, capture_output=True, check=False)
    assert "recipes/sft.sh:8" in ran.stdout, ran.stdout + ran.stderr
    train = ["algorithm=sft", "model=tiny", "data=reverse", "trainer.total_training_steps=1", *["--dry-run"][trains:]]
    ran = subprocess.run([inside / "bin" / "rlrun", "train", *train], cwd=tmp_path, text=True, capture_output=True,
                         env={"PYTHONPATH": str(inside), "HOME": str(tmp_path)})  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert len([*tmp_path.glob("runs/rlrun/*/checkpoints/step_000001/policy/model.safetensors")]) == trains
    assert (inside / "launcher" / "recipes" / "quickstart.sh").is_file()
    assert (inside / "launcher" / "conf" / "run.yaml").is_file()
    assert (inside / "launcher" / "reports" / "report.html.j2").is_file()
