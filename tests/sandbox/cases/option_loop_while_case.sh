#!/bin/bash
# arguments: --model Qwen/Qwen3-1.7B --lr=2e-6 --nodes 4 --debug -- trainer.save_freq=5
MODEL=Qwen/Qwen2.5-7B
LR=1e-6
NODES=1
DEBUG=false
EXTRA=()
while [[ $# -gt 0 ]]; do
  case "$1" in
    --model) MODEL="$2"; shift 2 ;;
    --lr=*) LR="${1#*=}"; shift ;;
    -n|--nodes)
      NODES="$2"
      shift
      shift
      ;;
    --debug) DEBUG=true; shift;;
    --) shift; EXTRA+=("$@"); break ;;
    *) echo "Unknown option: $1" >&2; exit 1 ;;
  esac
done
if [ "$DEBUG" = true ]; then
  EXTRA+=(trainer.total_training_steps=2)
fi
python -m verl.trainer.main_ppo actor_rollout_ref.model.path="$MODEL" actor_rollout_ref.actor.optim.lr=$LR trainer.nnodes=$NODES "${EXTRA[@]}"
