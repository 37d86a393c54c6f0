cat > train_args.txt <<EOF
data.train_batch_size=32
actor_rollout_ref.rollout.n=4
trainer.experiment_name=from_${USER:-nobody}
EOF
read -r -d '' PROMPT <<'EOF' || true
Solve $x step by step.
EOF
read -r -d '' OVERRIDES <<EOF
  trainer.nnodes=1
  trainer.n_gpus_per_node=4
EOF
python3 -m verl.trainer.main_ppo $(cat train_args.txt) $OVERRIDES "data.prompt=$PROMPT"
