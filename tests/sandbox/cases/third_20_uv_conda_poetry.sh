uv run --with verl python -m verl.trainer.main_ppo a=1
conda run --no-capture-output -n env torchrun --nproc_per_node=2 -m verl.trainer.sft_trainer b=2
CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0} sudo -E python3 -m verl.trainer.main_ppo c=3
