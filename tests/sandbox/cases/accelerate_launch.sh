accelerate launch --config_file acc.yaml --num_processes 8 --multi_gpu scripts/train_grpo.py model=x lr=1e-5
accelerate launch --num_processes=2 -m trl_like.train data=y
deepspeed --num_gpus 4 --master_port=29501 train.py --deepspeed ds.json model=z
