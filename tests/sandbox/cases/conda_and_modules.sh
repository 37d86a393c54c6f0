#!/bin/bash
#SBATCH --partition=gpu
module purge
module load cuda/12.4
source ~/miniconda3/etc/profile.d/conda.sh
conda activate verl
ulimit -n 65535
set +e
pip install -e . > /dev/null 2>&1
pkill -9 ray
ray stop --force || true
conda run -n verl --no-capture-output python -m verl.trainer.main_ppo trainer.nnodes=1
uv run -m verl.trainer.main_ppo a=1
pipenv run python -m verl.trainer.main_ppo a=2
python3 -mverl.trainer.main_ppo a=3
runuser -l me -c 'python3 -m verl.trainer.main_ppo a=4'
docker run -m 8g image python3 -m verl.trainer.main_ppo a=5
