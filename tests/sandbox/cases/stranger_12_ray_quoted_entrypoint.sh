export WANDB_API_KEY=none
ray job submit --address=http://10.0.0.1:8265 --working-dir . --no-wait -- bash -c 'export X=1; python3 -m verl.trainer.main_ppo x=$X y="a b"'
