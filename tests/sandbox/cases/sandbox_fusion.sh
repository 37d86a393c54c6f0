SANDBOX_URL='http://127.0.0.1:8080/run_code'
python3 -m verl.trainer.main_ppo \
  reward_model.reward_manager=prime \
  reward_model.sandbox_fusion.url="$SANDBOX_URL" \
  reward_model.sandbox_fusion.max_concurrent=128 \
  custom_reward_function.reward_kwargs='{"a": 1}'  \
  trainer.rollout_data_dir="outputs/rollout_data" "${@:1}"
