COMMON="actor_rollout_ref"
for role in actor ref; do
  P="${COMMON}.${role}.megatron"
  OPTS="$OPTS $P.tensor_model_parallel_size=2 $P.pipeline_model_parallel_size=1"
done
python3 -m verl.trainer.main_ppo $OPTS +$COMMON.x="[0,1]" 'y=${a.b}' "z={'k': 1}"
