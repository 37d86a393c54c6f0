#!/bin/bash
train() { python3 -m verl.trainer.main_ppo "$@"; }
cleanup() { local status=$?; train from=trap status=$status merged=$1; }
trap 'cleanup "$name"' EXIT INT
name=first
bash -c 'trap "python3 -m verl.trainer.main_ppo from=inner" EXIT; exit 2'
( train from=subshell )
trap 'train never=1' USR1
bash -c 'trap "python3 -m verl.trainer.main_ppo never=1" EXIT; trap - EXIT'
bash -c 'trap "python3 -m verl.trainer.main_ppo never=1" EXIT; exec python3 -m verl.trainer.main_ppo from=exec'
bash -c '( trap "python3 -m verl.trainer.main_ppo from=own" EXIT; python3 -m verl.trainer.main_ppo from=parentheses )'
x=$(trap 'python3 -m verl.trainer.main_ppo from=substitution >&2' 0; echo value)
train $x
name=last
exit 3
