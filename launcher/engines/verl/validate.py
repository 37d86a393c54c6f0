"""`python validate.py REQUEST`: verl composes its config of a run's arguments and checks it, as it does when it starts.

It runs in verl's environment, with verl alone, and prints one line of JSON: {}, {"refused": "why"}, or
{"unanswered": "why"} where something else than the arguments is at fault. Nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def answer(request: dict[str, Any]) -> dict[str, str]:
    """verl's verdict on the arguments of one of its programs."""
    import verl  # noqa: PLC0415  # the environment comes first
    from hydra import compose, initialize_config_dir  # noqa: PLC0415
    from hydra.errors import HydraException  # noqa: PLC0415
    from omegaconf.errors import OmegaConfBaseException  # noqa: PLC0415

    name = {"ppo": "ppo_trainer", "sft": "sft_trainer_engine"}[request["program"]]
    files = Path(verl.__file__).parent / "trainer" / "config"
    try:
        with initialize_config_dir(str(files), version_base=None):
            config = compose(name, overrides=request["arguments"])
        _check(config, request["program"])
    except (HydraException, OmegaConfBaseException, AssertionError, AttributeError, KeyError, NotImplementedError,
            TypeError, ValueError, ZeroDivisionError) as error:  # fmt: skip
        return {"refused": f"{type(error).__name__}: {error}".replace("\n", " ")[:500]}
    except (ImportError, OSError, RuntimeError) as error:  # a model or a package that is not here
        return {"unanswered": f"{type(error).__name__}: {error}".replace("\n", " ")[:500]}
    return {}


def _check(config: Any, program: str) -> None:
    from verl.utils.config import omega_conf_to_dataclass, validate_config  # noqa: PLC0415

    if program == "ppo":
        from verl.trainer.ppo.utils import need_critic, need_reference_policy  # noqa: PLC0415

        validate_config(config, need_reference_policy(config), need_critic(config))
        omega_conf_to_dataclass(config.actor_rollout_ref.rollout)  # a worker makes it later
    else:
        for section in (config.engine, config.optim, config.checkpoint):
            omega_conf_to_dataclass(section)


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    print(f"\n{json.dumps(answer(json.loads(sys.argv[1])))}", flush=True)
    os._exit(0)  # what verl has started by being imported is not waited for
