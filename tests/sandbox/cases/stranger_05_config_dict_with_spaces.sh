python3 -m verl.trainer.main_ppo \
  '+data.apply_chat_template_kwargs={enable_thinking: False}' \
  "actor_rollout_ref.model.override_config={attn_implementation: flash_attention_2, x: [1, 2]}" \
  +ray_kwargs.ray_init.runtime_env.env_vars.A=\'1\' \
  trainer.logger=[console,wandb] \
  "hydra.searchpath=[file://\${oc.env:HOME}/cfg]"
