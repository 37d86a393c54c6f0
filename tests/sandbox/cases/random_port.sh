PORT=$((20000 + RANDOM % 1000))
MASTER=$(hostname -I | awk '{print $1}')
JOB=$$
python3 -m verl.trainer.main_ppo port=$PORT master=$MASTER:$PORT job=$JOB user=$USER
