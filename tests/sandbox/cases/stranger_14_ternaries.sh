DEBUG=0
python3 -m verl.trainer.main_ppo steps=$(( DEBUG ? 2 : 100 )) save=$([ $DEBUG -eq 1 ] && echo -1 || echo 10) v=$([[ $DEBUG == 1 ]] && echo "True" || echo "False")
