"""Manifests that start a run elsewhere: KubeRay's RayJob, a Slurm batch script, a SkyPilot task.

All start the run where its folder is new and resume it otherwise, so that a restart loses nothing.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from launcher.clusters.slurm import Slurm
from launcher.config.resolve import resolve
from launcher.core.machine import package_version
from launcher.core.problems import Problem, Problems
from launcher.spec.hardware import Hardware
from launcher.spec.run import RunSpec

MOUNT = "/runs"
PORT = 6399  # SkyPilot's own Ray has 6380
ON_RAY = ("cluster=ray", "cluster.address=auto")
TTL_S, BACKOFF = 300, 3


class ManifestKind(StrEnum):
    KUBERAY = "kuberay"
    SLURM = "slurm"
    SKYPILOT = "skypilot"


def manifest(kind: ManifestKind, overrides: Sequence[str], config_dir: Path | None, image: str | None) -> str:
    """Raises `Problems` for overrides that make no run, or where `image` is missing or would be ignored."""
    _check_image(kind, image)
    rest = [word for word in overrides if not word.startswith("cluster=")]
    cluster = ("cluster=slurm",) if kind is ManifestKind.SLURM else ON_RAY
    run = resolve([*rest, *cluster], config_dir)
    name = run.trainer.experiment_name or run.label
    run = replace(run, trainer=replace(run.trainer, experiment_name=name))
    own = ("trainer.experiment_name=", *(() if kind is ManifestKind.SLURM else ("trainer.run_root=",)))
    output = [*(["--config-dir", str(config_dir)] if config_dir else ()), *(w for w in rest if not w.startswith(own)),
              f"trainer.experiment_name={name}", *cluster]  # fmt: skip
    if kind is ManifestKind.SLURM:
        return _slurm(run, output)
    begin = _begin([*output, f"trainer.run_root={MOUNT}"], f"{MOUNT}/{run.trainer.project_name}/{name}")
    return _kuberay(run, begin, image or "") if kind is ManifestKind.KUBERAY else _skypilot(run, begin, image)


def _check_image(kind: ManifestKind, image: str | None) -> None:
    if kind is ManifestKind.KUBERAY and not image:
        raise Problems(Problem("--image", "kuberay starts containers", "name an image that has rlrun"))
    if kind is ManifestKind.SLURM and image:
        fix = "use cluster.setup for what has to be loaded"
        raise Problems(Problem("--image", "slurm starts processes", fix, "conflicting-settings"))


def _begin(overrides: Sequence[str], folder: str) -> str:
    """Shell command that starts or resumes the run."""
    again, new = shlex.join(["rlrun", "train", "--resume", folder]), shlex.join(["rlrun", "train", *overrides])
    return f"if [ -e {shlex.quote(folder)}/spec.yaml ]; then exec {again}; else exec {new}; fi"


def _slurm(run: RunSpec, overrides: Sequence[str]) -> str:
    cluster = run.cluster if isinstance(run.cluster, Slurm) else Slurm()
    folder = f"{run.trainer.run_root}/{run.trainer.project_name}/{run.trainer.experiment_name}"
    name = f"{run.trainer.project_name}/{run.trainer.experiment_name}"
    begin = f"{{ {_begin(overrides, folder)}; }}"
    return cluster.script(
        name, folder, "rlrun-%j.log", run.taken, begin=begin, rlrun="rlrun", cwd='"$SLURM_SUBMIT_DIR"'
    )


def _kuberay(run: RunSpec, begin: str, image: str) -> str:
    """https://ray-project.github.io/kuberay/reference/api/"""
    hardware = run.taken
    cluster: dict[str, Any] = {
        "rayVersion": package_version("ray") or "2.60.0",
        "authOptions": {"mode": "token"},
        "headGroupSpec": {"rayStartParams": {"dashboard-host": "0.0.0.0"}, **_pod(hardware, image, "ray-head")},
    }
    if hardware.nnodes > 1:
        more = hardware.nnodes - 1
        cluster["workerGroupSpecs"] = [
            {
                "groupName": "nodes", "replicas": more, "minReplicas": more, "maxReplicas": more,
                "rayStartParams": {}, **_pod(hardware, image, "ray-worker"),
            }
        ]  # fmt: skip
    node = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": dns_name(f"{run.trainer.project_name}-{run.trainer.experiment_name}")},
        "spec": {
            "entrypoint": shlex.join(["sh", "-c", begin]),
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": TTL_S,
            "backoffLimit": BACKOFF,
            "rayClusterSpec": cluster,
        },
    }
    return _yaml(
        node,
        f"# kubectl apply -f this; KubeRay 1.5 or newer. {MOUNT} is the claim `rlrun` (ReadWriteMany), which all see.",
        "# cpu and memory: what is not limited here is as large as the machine.",
    )


def _pod(hardware: Hardware, image: str, name: str) -> dict[str, Any]:
    gpus = hardware.n_gpus_per_node
    container = {
        "name": name,
        "image": image,
        "resources": {"limits": {"nvidia.com/gpu": gpus}} if gpus else {},
        "volumeMounts": [{"name": "runs", "mountPath": MOUNT}, {"name": "shm", "mountPath": "/dev/shm"}],
    }
    volumes = [
        {"name": "runs", "persistentVolumeClaim": {"claimName": "rlrun"}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},  # a container's own is 64 MB
    ]
    return {"template": {"spec": {"containers": [container], "volumes": volumes}}}


def _skypilot(run: RunSpec, begin: str, image: str | None) -> str:
    """https://docs.skypilot.co/en/latest/reference/yaml-spec.html"""
    hardware = run.taken
    resources: dict[str, Any] = {} if hardware.is_cpu else {"accelerators": accelerators(hardware)}
    node: dict[str, Any] = {
        "name": dns_name(f"{run.trainer.project_name}-{run.trainer.experiment_name}"),
        "num_nodes": hardware.nnodes,
        "resources": {**resources, **({"image_id": f"docker:{image}"} if image else {})},
        "volumes": {MOUNT: "rlrun"},
        "secrets": {"RLRUN_TOKEN": None},
        "setup": "rlrun --version || pip install rlrun\n",
        "run": f"""\
head=$(echo "$SKYPILOT_NODE_IPS" | head -n1):{PORT}
if [ "$SKYPILOT_NODE_RANK" != 0 ]; then
  until echo "$RLRUN_TOKEN" | rlrun cluster join "$head" --token-file - --leave-after 120; do sleep 5; done
  echo "$RLRUN_TOKEN" | rlrun cluster join "$head" --token-file - --block || true  # until the head has left
  exit 0
fi
echo "$RLRUN_TOKEN" | rlrun cluster up --port {PORT} --token-file - || exit 1
trap 'rlrun cluster down' EXIT
({begin})
""",
    }
    return _yaml(
        node,
        "# RLRUN_TOKEN=$(openssl rand -hex 32) sky launch --secret RLRUN_TOKEN this",
        f"# {MOUNT} is the volume `rlrun` (sky volumes apply), which all nodes see.",
    )


def accelerators(hardware: Hardware) -> str:
    """As SkyPilot calls them: h100 is H100, a100-80g is A100-80GB."""
    name = re.sub(r"(?<=[0-9])G$", "GB", hardware.device.upper())
    return f"{name}:{hardware.n_gpus_per_node}"


def dns_name(name: str) -> str:
    """What Kubernetes takes for a name, with room for what is added to it."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].rstrip("-") or "rlrun"


class _Text(yaml.SafeDumper):
    """Writes texts of several lines as such."""


_Text.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def _yaml(node: dict[str, Any], *remarks: str) -> str:
    return "".join(f"{line}\n" for line in remarks) + yaml.dump(node, Dumper=_Text, sort_keys=False, width=1000)
