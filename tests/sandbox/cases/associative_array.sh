declare -A cfg=(
  [trainer.nnodes]=2
  [data.train_batch_size]=64
)
cfg[actor_rollout_ref.rollout.n]=4
args=()
for key in trainer.nnodes data.train_batch_size actor_rollout_ref.rollout.n; do
  args+=("$key=${cfg[$key]}")
done
python3 -m verl.trainer.main_ppo "${args[@]}" count=${#cfg[@]}
