# arguments: large
SIZE=${1:-small}
if [ "$SIZE" == "small" ]; then
  MODEL=Qwen/Qwen3-0.6B; TP=1
elif [ "$SIZE" = "large" ] && [ -n "$SIZE" ]; then
  MODEL=Qwen/Qwen3-32B
  TP=4
else
  echo "unknown size"; exit 1
fi
[[ $TP -gt 1 && $MODEL == *32B* ]] && OFFLOAD=True || OFFLOAD=False
if (( TP >= 4 )); then MEM=0.8; else MEM=0.6; fi
python3 -m verl.trainer.main_ppo model=$MODEL tp=$TP offload=$OFFLOAD mem=$MEM
