use_lora=true
rank=32
lora_args=""
if $use_lora; then
  lora_args="actor_rollout_ref.model.lora_rank=$rank actor_rollout_ref.model.lora_alpha=$((rank * 2))"
fi
test "$rank" -gt 16 && lora_args="$lora_args actor_rollout_ref.model.target_modules=all-linear"
python3 -m verl.trainer.main_ppo $lora_args \
   actor_rollout_ref.rollout.load_format=safetensors
