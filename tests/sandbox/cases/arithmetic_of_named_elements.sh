#!/bin/bash
declare -A MB=([0.5B]=16 [7B]=8 [a b]=2)
key=7B; arr=(4 5 6); i=0
for k in "${!MB[@]}"; do ((total += MB[$k])); done
((MB[$key]++, ++MB[7B])); (( ++arr[1], arr[i+2] *= 2 )); --arr[0] 2> /dev/null
shopt -s extglob
m=Qwen/Qwen2.5-VL-7B-Instruct
[[ $m == *@(VL|Omni)* ]] && img="data.image_key=images"; [[ $m != *Coder* ]] && plain=1
if [[ -n $m && $m = +([!/])/* ]]; then org=1; fi
python3 -m verl.trainer.main_ppo $img +total=$total +mb=${MB[7B]} "+arr=${arr[*]}" +plain=$plain +org=$org +x=$((MB[0.5B] > MB[7B] ? 1 : 2))
