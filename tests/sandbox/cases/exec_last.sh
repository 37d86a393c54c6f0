set -e
export HYDRA_FULL_ERROR=1
exec python3 -m verl.trainer.main_ppo trainer.nnodes=1
python3 -m verl.trainer.main_ppo never=1
