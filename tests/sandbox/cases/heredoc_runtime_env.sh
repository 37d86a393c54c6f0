cat <<EOF > runtime_env.yaml
working_dir: ./
env_vars:
  NCCL_DEBUG: "WARN"
  TOKENIZERS_PARALLELISM: "true"
EOF
ray job submit --address="http://127.0.0.1:8265" --runtime-env=runtime_env.yaml -- \
  python3 -m verl.trainer.main_ppo trainer.nnodes=2 'trainer.logger=["console"]'
