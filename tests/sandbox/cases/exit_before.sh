if [ -z "$1" ]; then
  python3 -m verl.trainer.main_ppo first=1
  exit 0
fi
python3 -m verl.trainer.main_ppo second=1
