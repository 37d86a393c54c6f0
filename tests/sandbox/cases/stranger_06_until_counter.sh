n=1
until [ $n -gt 3 ]
do
  python3 -m verl.trainer.main_ppo run=$n
  n=`expr $n + 1`
done
