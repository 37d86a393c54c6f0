nohup timeout 3600 nice -n 5 env A=1 B="2 3" stdbuf -oL python3 -m verl.trainer.main_ppo x=1 > out.log 2> err.log < /dev/null &
echo $! > pid
numactl --cpunodebind=0 --membind=0 python3 -m verl.trainer.main_ppo x=2
wait
