while IFS='|' read -r name lr batch; do
  [ -z "$name" ] && continue
  python3 -m verl.trainer.main_ppo trainer.experiment_name=$name optim.lr=$lr data.train_batch_size=$batch
done <<'EOF'
small|1e-6|128
large one|5e-7|256

EOF
