#!/bin/bash
declare -A lr=([0.5B]=3e-6 [1.5B]=2e-6 [7B]=1e-6 [14B]=1e-6 [32B]=9e-7 ["a b"]=0)
for size in "${!lr[@]}"; do python3 -m verl.trainer.main_ppo "+lr.$size=${lr[$size]}"; done
lr[7B]=5e-6; unset "lr[14B]"; lr[72B]=1; lr[14B]=2
python3 -m verl.trainer.main_ppo "${lr[*]}" "${lr[@]:2:2}" "${#lr[@]}"
declare -A many
for n in {1..300}; do many[key_$n]=$n; done
many[é]=0
python3 -m verl.trainer.main_ppo ${!many[*]} "${many[*]}"
