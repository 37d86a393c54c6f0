SECONDS_LEFT=3
while :; do
  SECONDS_LEFT=$((SECONDS_LEFT-1))
  [ $SECONDS_LEFT -le 0 ] && break
  python3 -m verl.trainer.main_ppo left=$SECONDS_LEFT
done
