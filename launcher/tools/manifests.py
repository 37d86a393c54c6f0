"""Manifests that start a run elsewhere: KubeRay's RayJob, a SkyPilot task. Both are templates in conf/.

They start the run where its folder is new and resume it otherwise, so that a restart loses nothing. The batch script of
Slurm is written by cluster=slurm.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from string import Template

from launcher.config.resolve import resolve
from launcher.core.files import conf_dir
from launcher.core.machine import package_version
from launcher.core.problems import Problem, Problems
from launcher.spec.hardware import Hardware

MOUNT = "/runs"
CLUSTER = ("cluster=ray", "cluster.address=auto")


class ManifestKind(StrEnum):
    KUBERAY = "kuberay"
    SKYPILOT = "skypilot"


def manifest(kind: ManifestKind, overrides: Sequence[str], config_dir: Path | None, image: str | None) -> str:
    """The text of a manifest for the run. Raises `Problems` for overrides that make no run, or a missing `image`."""
    if kind is ManifestKind.KUBERAY and not image:
        raise Problems(Problem("--image", "kuberay starts containers", "name an image that has rlrun"))
    rest = [word for word in overrides if not word.startswith("cluster=")]
    run = resolve([*rest, *CLUSTER], config_dir)
    name = run.trainer.experiment_name or run.label
    own = ("trainer.experiment_name=", "trainer.run_root=")
    words = [*(["--config-dir", str(config_dir)] if config_dir else ()), *(w for w in rest if not w.startswith(own)),
              f"trainer.experiment_name={name}", *CLUSTER, f"trainer.run_root={MOUNT}"]  # fmt: skip
    begin = _start_command(words, f"{MOUNT}/{run.trainer.project_name}/{name}")
    hardware, gpus = run.taken, run.taken.n_gpus_per_node
    resources = {} if hardware.is_cpu else {"accelerators": accelerators(hardware)}
    values = {
        "name": dns_name(f"{run.trainer.project_name}-{name}"),
        "image": image,
        "nodes": hardware.nnodes,
        "workers": hardware.nnodes - 1,
        "ray": package_version("ray") or "2.60.0",
        "limits": {"nvidia.com/gpu": gpus} if gpus else {},
        "resources": {**resources, **({"image_id": f"docker:{image}"} if image else {})},
        "entrypoint": shlex.join(["sh", "-c", begin]),
    }
    texts = {key: json.dumps(value, ensure_ascii=False) for key, value in values.items()}  # JSON is YAML
    template = Template((conf_dir() / f"{kind}.yaml").read_text(encoding="utf-8"))
    return template.substitute(texts, begin=begin.replace("\n", "\n  "))  # it stands in a block, indented by two


def _start_command(overrides: Sequence[str], folder: str) -> str:
    """Shell command that starts or resumes the run."""
    resume, start = shlex.join(["rlrun", "train", "--resume", folder]), shlex.join(["rlrun", "train", *overrides])
    return f"if [ -e {shlex.quote(folder)}/spec.yaml ]; then exec {resume}; else exec {start}; fi"


def accelerators(hardware: Hardware) -> str:
    """A node's GPUs in SkyPilot's form: `H100:8` for h100, `A100-80GB:8` for a100-80g."""
    name = re.sub(r"(?<=[0-9])G$", "GB", hardware.device.upper())
    return f"{name}:{hardware.n_gpus_per_node}"


def dns_name(name: str) -> str:
    """A name that Kubernetes accepts, of at most 40 characters, as Kubernetes appends to it."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].rstrip("-") or "rlrun"
