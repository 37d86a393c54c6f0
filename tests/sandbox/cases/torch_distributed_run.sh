python3 -m torch.distributed.run --nnodes=1 --nproc-per-node=4 --rdzv-backend=c10d -m verl.trainer.sft_trainer optim.lr=1e-5
python -m torch.distributed.launch --nproc_per_node=2 --use_env recipe/char_count/train_sft.py a=1 b=2
