for seed in 1 2 42; do
  for lr in 1e-6 5e-7; do
    python3 -m verl.trainer.main_ppo data.seed=$seed actor_rollout_ref.actor.optim.lr=$lr trainer.experiment_name=grpo-s${seed}-lr${lr} > run_${seed}_$lr.log 2>&1
  done
done
