python3 -m verl.trainer.main_ppo a=1 &
PID=$!
while ps -p $PID > /dev/null; do sleep 1; break; done
wait $PID
status=$?
[ $status -eq 0 ] || exit $status
python3 -m verl.trainer.main_ppo b=2
