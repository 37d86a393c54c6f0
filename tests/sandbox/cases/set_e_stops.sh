set -e
python3 -m verl.trainer.main_ppo before=1
false
python3 -m verl.trainer.main_ppo after=1
