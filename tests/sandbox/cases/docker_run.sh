IMG=verlai/verl:vllm011
docker run --rm --gpus all --shm-size=10g --net=host -v $PWD:/workspace -e WANDB_MODE=offline -w /workspace $IMG \
  bash -c "cd . && python3 -m verl.trainer.main_ppo trainer.nnodes=1 'data.name=a b'"
