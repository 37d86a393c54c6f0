set -eu
python3 -m verl.trainer.main_ppo before=1
python3 -m verl.trainer.main_ppo path=$MISSING_PATH
