echo 1 2 3 | xargs -n 1 python3 -m verl.trainer.main_ppo fixed=1
printf 'a\nb\n' | xargs -I {} python3 -m verl.trainer.main_ppo name={} x={}_y
