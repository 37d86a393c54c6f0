# environment: GIVEN=4
set -u
m=3
a=${m:-$ARNOLD_WORKER_GPU}
b=${n:-${GIVEN:-$ARNOLD_WORKER_NUM}}
c=${ARNOLD_ID:+$ARNOLD_ID}
python3 -m verl.trainer.main_ppo a=$a b=$b c=$c
d=${n:-$ARNOLD_WORKER_GPU}
python3 -m verl.trainer.main_ppo d=$d
