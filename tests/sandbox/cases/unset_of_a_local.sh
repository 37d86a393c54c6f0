#!/bin/bash
train() { python3 -m verl.trainer.main_ppo "$@"; }
lr=1
keep() { local lr=3; unset lr; train "${lr-none}"; lr=2; train $lr; }
keep; train $lr
drop() { unset lr; }
outer() { local lr=4; drop; train $lr; lr=5; }
outer; train $lr
real() { unset lr; train "${lr-none}"; lr=6; }
real; train $lr
check() { local x; [[ -v x ]] && train set || train unset; x=; [[ -v x ]] && train set; }
check
declare -A map=([k]=1); [[ -v map[k] ]] && train k; [[ -v map[j] ]] || train j; [[ -v map ]] || train map
