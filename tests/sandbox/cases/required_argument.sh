model=${1:?usage: run.sh model}
python3 -m verl.trainer.main_ppo model=$model
