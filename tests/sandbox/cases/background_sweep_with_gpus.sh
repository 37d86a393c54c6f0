MODELS=(Qwen/Qwen3-0.6B meta-llama/Llama-3.2-1B)
i=0
for model in "${MODELS[@]}"; do
  CUDA_VISIBLE_DEVICES=$i nohup python3 -u -m verl.trainer.main_ppo \
    actor_rollout_ref.model.path=$model trainer.experiment_name=${model##*/} port=$((29500 + i)) > log_$i.txt 2>&1 &
  pids[$i]=$!
  ((i++))
done
for pid in "${pids[@]}"; do wait $pid; done
