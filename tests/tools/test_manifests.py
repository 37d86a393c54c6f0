"""The files with which others start a run's nodes: they parse, ask for what the run asks for, and begin or go on."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.core.problems import Problems
from launcher.tools.manifests import ManifestKind, manifest

RUN = ["algorithm=grpo", "model=tiny", "data=reverse", "sampler.n=8", "data.train_batch_size=32"]
GPUS = [*RUN, "hardware=h100x8", "trainer.project_name=p", "trainer.experiment_name=Big_1"]
TWO = [*GPUS, "hardware.nnodes=2"]
FOUR = [*GPUS, "hardware.nnodes=4"]


def parsed(kind: ManifestKind, words: list[str], image: str | None = None) -> Any:
    return yaml.safe_load(manifest(kind, words, None, image))


def shell_of(text: str, tmp_path: Path) -> list[str]:
    """What it does where there is no run, then where there is one: `rlrun` only says how it is called."""
    (tmp_path / "rlrun").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "rlrun").chmod(0o755)
    found = []
    for there in (False, True):
        run = tmp_path / "runs" / "p" / "Big_1"
        if there:
            run.mkdir(parents=True)
            (run / "spec.yaml").touch()
        here = text.replace("/runs/", f"{tmp_path}/runs/")
        ran = subprocess.run(
            ["sh", "-c", here], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stderr
        found.append(ran.stdout)
    return found


@pytest.mark.parametrize(("words", "workers"), [(GPUS, 0), (TWO, 1), (FOUR, 3)])
def test_kuberay_has_a_pod_for_each_node(words: list[str], workers: int) -> None:
    """The head is one of them, and trains like the others."""
    node = parsed(ManifestKind.KUBERAY, words, "me/rlrun:1")
    assert (node["apiVersion"], node["kind"], node["metadata"]["name"]) == ("ray.io/v1", "RayJob", "p-big-1")
    cluster = node["spec"]["rayClusterSpec"]
    groups = cluster["workerGroupSpecs"]
    assert [(g["replicas"], g["minReplicas"], g["maxReplicas"]) for g in groups] == [(workers,) * 3]
    for group in (cluster["headGroupSpec"], *groups):
        (container,) = group["template"]["spec"]["containers"]
        assert container["image"] == "me/rlrun:1" and container["resources"] == {"limits": {"nvidia.com/gpu": 8}}
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in group["template"]["spec"]["volumes"]} == {"runs", "shm"}
    assert cluster["authOptions"] == {"mode": "token"} and node["spec"]["shutdownAfterJobFinishes"] is True


def test_kuberay_begins_and_goes_on(tmp_path: Path) -> None:
    entry = shlex.split(parsed(ManifestKind.KUBERAY, TWO, "i")["spec"]["entrypoint"])
    assert entry[:2] == ["sh", "-c"]
    new, again = shell_of(entry[2], tmp_path)
    assert new.startswith("train algorithm=grpo ") and "cluster=ray cluster.address=auto" in new and "nnodes=2" in new
    assert again == f"train --resume {tmp_path}/runs/p/Big_1\n"


@pytest.mark.parametrize(
    ("hardware", "named"),
    [
        (["hardware=h100x8"], "H100:8"),
        (["hardware=a100x8"], "A100-80GB:8"),  # of two kinds, the one with 80 GB
        (["hardware=gpu", "hardware.device=l40s"], "L40S:1"),
        ([], None),
    ],
)
def test_skypilot_asks_for_the_gpus(hardware: list[str], named: str | None) -> None:
    node = parsed(ManifestKind.SKYPILOT, [*RUN, *hardware], "me/rlrun:1")
    assert node["resources"].get("accelerators") == named and node["resources"]["image_id"] == "docker:me/rlrun:1"


def test_skypilot_is_a_head_and_others(tmp_path: Path) -> None:
    node = parsed(ManifestKind.SKYPILOT, FOUR)
    assert node["num_nodes"] == 4 and node["secrets"] == {"RLRUN_TOKEN": None} and "image_id" not in node["resources"]
    for part in ("setup", "run"):
        subprocess.run(["bash", "-n", "-c", node[part]], check=True)
    new, _ = shell_of(f"SKYPILOT_NODE_RANK=0; {node['run']}", tmp_path)
    up, train, down = new.splitlines()
    assert up == "cluster up --port 6399 --token-file -" and train.startswith("train ") and down == "cluster down"
    others = f"SKYPILOT_NODE_RANK=1; SKYPILOT_NODE_IPS='10.0.0.1\n10.0.0.2'; {node['run']}"
    (tmp_path / "other").mkdir()
    joined = shell_of(others, tmp_path / "other")[0].splitlines()
    assert joined[0] == "cluster join 10.0.0.1:6399 --token-file - --leave-after 120" and len(joined) == 2
    assert joined[1].endswith("--block")


def test_skypilot_keeps_the_line_breaks_of_an_argument(tmp_path: Path) -> None:
    """It is part of a block of YAML, where a line that is not indented would end the block."""
    alphabet = "model.alphabet='0123456789,\n #:'"
    node = parsed(ManifestKind.SKYPILOT, [*GPUS, alphabet])
    new, _ = shell_of(f"SKYPILOT_NODE_RANK=0; {node['run']}", tmp_path)
    assert f" {alphabet} " in new


@pytest.mark.parametrize(
    ("kind", "words", "image", "line"),
    [
        (ManifestKind.KUBERAY, RUN, None, "--image: kuberay starts containers; "),
        (ManifestKind.SKYPILOT, [*RUN, "sampler.m=1"], None, "sampler.m: "),  # words that make no run
    ],
)
def test_what_cannot_be_is_refused(kind: ManifestKind, words: list[str], image: str | None, line: str) -> None:
    with pytest.raises(Problems) as caught:
        manifest(kind, words, None, image)
    assert caught.value.lines[0].startswith(line), caught.value.lines
