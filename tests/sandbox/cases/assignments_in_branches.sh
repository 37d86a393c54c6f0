#!/bin/bash
if [[ "$1" == "--debug" ]]; then DEBUG=1 BS=8; shift; else DEBUG=0 BS=128; fi
case ${MODEL:-qwen} in
  qwen) PATH_=Qwen/Qwen3-8B TP=2;;
  llama)
    PATH_=meta/L TP=4
    ;;
esac
for g in 0 1; do A=$g B=$((g+1)); done
if (( DEBUG )); then L=1 M=2; fi
f() { local x=1 y=2; local z=$((x+y)) w; w=$z; echo $w; }
V=$(f) W=$(X=3 Y=4; echo $((X+Y)))
[ -n "$V" ] && P=1 Q=2
python3 -m verl.trainer.main_ppo bs=$BS p=$PATH_ tp=$TP a=$A b=$B v=$V w=$W pq=$P$Q
