HOSTS="n1 n2"
for h in $HOSTS; do
  ssh -o StrictHostKeyChecking=no $h "export R=$h; python3 -m verl.trainer.main_ppo host=\$R" &
done
wait
