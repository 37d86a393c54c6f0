#!/bin/bash
# All words of export, local and declare are expanded before the first of them has its effect; arrays have it at once.
export A=1 B="$A-2"
C=old
f() {
  local C=new D=$C E=$1 G=${E:-none}
  declare -i h=4 i=h+1
  local -a q=(1 2) r=("${q[@]}") s="${q[1]}"
  python3 -m verl.trainer.main_ppo +c=$C +d=$D +e=$E +g=$G +i=$i "+r=${r[*]}" +s=$s
}
f x
readonly K=1 L=${K:-unset}
declare M=5; declare -x M+=6 N=$M
python3 -m verl.trainer.main_ppo +b=$B +l=$L +m=$M +n=$N
