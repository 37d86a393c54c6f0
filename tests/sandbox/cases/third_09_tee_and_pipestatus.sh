set -o pipefail
python3 -m verl.trainer.main_ppo a=1 |& tee -a log
if [ ${PIPESTATUS[0]} -eq 0 ]; then
  python3 -m verl.trainer.main_ppo b=2
fi
echo "a=3 b=4" | { read -r args; python3 -m verl.trainer.main_ppo $args; }
