OUT=exp1
bash -c "python3 -m verl.trainer.main_ppo \"trainer.logger=['console','swanlab']\" out=$OUT 'z={\"k\":1}' 2>&1 | tee $OUT.log"
bash -xc 'python3 -m verl.trainer.main_ppo last="${1}"' -- arg1
