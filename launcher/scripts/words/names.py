"""Variables that a script finds set, though no line of it sets them."""

from __future__ import annotations

import re

_MACHINE = """
BASH BASHOPTS BASHPID BASH_COMMAND BASH_SUBSHELL BASH_VERSINFO BASH_VERSION DIRSTACK EPOCHREALTIME EPOCHSECONDS EUID
GROUPS HOME HOSTNAME HOSTTYPE LANG LOGNAME MACHTYPE OSTYPE PATH PPID PS4 RANDOM SECONDS SHELL SHELLOPTS SHLVL SRANDOM
TERM UID USER
"""
MACHINE = frozenset(_MACHINE.split())
"""Variables that every shell has, each with another value."""
AT_START = {"IFS": " \t\n", "OPTIND": "1", "OPTERR": "1"}
"""Variables that bash itself sets in every shell, to the same value, also where the environment has another."""
CLUSTER = re.compile(
    r"(SLURM|MLP|PET|ARNOLD|KUBERNETES|VC|PBS|LSB|OMPI|PMI|MPI|SENSECORE|DLC|AWS_BATCH|SM|PADDLE|TASK|METIS)_\w+"
    r"|MASTER_ADDR|MASTER_PORT|MASTER_IP|RANK|NODE_RANK|LOCAL_RANK|WORLD_SIZE|GROUP_RANK|HOST_IP|POD_IP|POD_NAME|NODE_IP"
)
"""Variables that schedulers and launchers of processes set."""
