#!/bin/bash
# A body that begins with [[ ]] or (( )) is read whole each time.
run() {
  [[ $1 == skip ]] && return 0
  (( $2 > 4 )) && local big=true
  python3 -m verl.trainer.main_ppo model="$1" big="${big:-false}"
}
run a 1
run skip 1
run b 8
for lr in 1e-6 2e-6; do
  [[ $lr == 2* ]] && extra=+trainer.late=true
  for seed in 1 2 3; do
    (( seed == 2 )) && continue
    python3 -m verl.trainer.main_ppo lr=$lr seed=$seed $extra
  done
done
n=0
while (( n < 3 )); do
  ((n += 1))
  if [[ $n == 2 ]]; then [[ -n $n ]]; python3 -m verl.trainer.main_ppo n=$n; fi
  eval '[[ $n == 3 ]] && python3 -m verl.trainer.main_ppo last=$n'
done
while read -r name; do
  [[ -z $name ]] && continue
  python3 -m verl.trainer.main_ppo read=$name
done <<< $'a\n\nb'
