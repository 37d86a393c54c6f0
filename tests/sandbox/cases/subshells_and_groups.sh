x=1
(x=2; cd /tmp; python3 -m verl.trainer.main_ppo inside=$x)
{ x=3; python3 -m verl.trainer.main_ppo group=$x; } 2>&1 | tee g.log
{ x=4; }
python3 -m verl.trainer.main_ppo after=$x
(
  export A=sub
  python3 -m verl.trainer.main_ppo a=$A
) &
wait
