#!/bin/bash
if python3 -m verl.trainer.main_ppo trainer.total_epochs=1; then
  echo "done"
else
  echo "failed; once more with less memory"
  python3 -m verl.trainer.main_ppo trainer.total_epochs=1 actor_rollout_ref.rollout.gpu_memory_utilization=0.4
fi
if ! torchrun --nproc_per_node=8 -m verl.trainer.sft_trainer optim.lr=1e-5; then
  torchrun --nproc_per_node=8 -m verl.trainer.sft_trainer optim.lr=1e-6
fi
kubectl -n train exec -i head-0 -c ray-head -- bash -c "
  python3 -m verl.trainer.main_ppo trainer.project_name=cluster
"
