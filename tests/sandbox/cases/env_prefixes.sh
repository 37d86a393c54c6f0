env NCCL_DEBUG=INFO HYDRA_FULL_ERROR=1 CUDA_VISIBLE_DEVICES=0,1 python3 -m verl.trainer.main_ppo trainer.n_gpus_per_node=2
VLLM_USE_V1=1 TOKENIZERS_PARALLELISM=true python3 -m verl.trainer.main_ppo trainer.n_gpus_per_node=1
time HYDRA_FULL_ERROR=1 python3 -m verl.trainer.main_ppo trainer.n_gpus_per_node=3
