#!/bin/bash
inner() { python3 -m verl.trainer.main_ppo "in=$1" v="${V-none}"; }
run() { inner "$1"; }
V=1
export -f run inner; declare -fx run
bash -c 'run a'
export V; printf '%s\n' b c | xargs -I{} bash -c 'run "$1"' _ {}
timeout 9 bash -c "run 'x y'"
export -n V; bash -c 'run d'
export W=2 Z=3; declare +x W; export -n Z=4
export -nf run; bash -c 'declare -F run || python3 -m verl.trainer.main_ppo none=1'
D=1; D=4 E=$D D+=5 bash -c 'python3 -m verl.trainer.main_ppo "$D" "$E"'
python3 -m verl.trainer.main_ppo "$D" "$Z"
declare -i i=2+3; declare +i i; i=1+1; python3 -m verl.trainer.main_ppo $i
declare -p nothing > /dev/null 2>&1 || python3 -m verl.trainer.main_ppo nothing=1
declare -f inner > /dev/null && declare -p D > /dev/null && python3 -m verl.trainer.main_ppo both=1
