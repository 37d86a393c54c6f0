MODELS="Qwen/Qwen3-0.6B Qwen/Qwen3-1.7B Qwen/Qwen3-4B"
IDX=${SLURM_ARRAY_TASK_ID:-1}
set -- $MODELS
shift $IDX
MODEL=$1
python3 -m verl.trainer.main_ppo m=$MODEL rest="$*"
