V=0.9.1
IFS=. read -r major minor patch <<< "$V"
if (( major > 0 || minor >= 9 )); then KEY=trainer.new; else KEY=trainer.old; fi
python3 -m verl.trainer.main_ppo $KEY=$((10#$minor * 100 + patch)) v=${V//./_}
