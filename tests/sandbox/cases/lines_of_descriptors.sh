#!/bin/bash
# Lines read from other descriptors than standard input, of files that the script writes.
cat > grid.csv <<EOF
name,lr
a,1e-6
b,2e-6
EOF
names=()
while IFS=, read -r -u 3 name lr; do
  [ "$name" = name ] && continue
  names+=("$name")
  python3 -m verl.trainer.main_ppo trainer.experiment_name=$name actor_rollout_ref.actor.optim.lr=$lr
done 3< grid.csv
exec 4< grid.csv
read -r header <&4
while read -r line <&4; do names+=("${line%,*}"); done
exec 4<&-
tail -n +3 grid.csv | while IFS=, read -r name lr; do
  python3 -m verl.trainer.main_ppo trainer.experiment_name=$name
done
python3 -m verl.trainer.main_ppo "+names=[$(IFS=,; echo "${names[*]}")]" "+header=$header" "+first=$(head -n -2 grid.csv)" "+n=${#names[@]}"
