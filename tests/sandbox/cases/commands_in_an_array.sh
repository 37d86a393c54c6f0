#!/bin/bash
N=4
CMDS=()
for i in $(seq 0 $((N-1))); do
  CMDS[$i]="CUDA_VISIBLE_DEVICES=$i python3 -m verl.trainer.main_ppo data.seed=$((42+i)) trainer.experiment_name='s $i'"
done
printf '%s\n' "${CMDS[@]}" > jobs.txt
xargs -P 2 -I CMD bash -c CMD < jobs.txt
for c in "${CMDS[@]:0:2}"; do eval "$c" & done; wait
echo "python3 -m verl.trainer.main_ppo piped=1" | bash
bash <<< "python3 -m verl.trainer.main_ppo herestring=$N"
bash <(echo 'python3 -m verl.trainer.main_ppo procsub=1 $1') arg
. <(echo 'SRC=7')
python3 -m verl.trainer.main_ppo src=$SRC
