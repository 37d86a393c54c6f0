ppo_lr=1e-6
sft_lr=1e-5
for stage in ppo sft; do
  var="${stage}_lr"
  python3 -m verl.trainer.main_ppo stage=$stage lr=${!var} other=${!var:-none}
done
show() { local -n ref=$1; echo "${ref[*]}"; }
list=(1 2 3)
python3 -m verl.trainer.main_ppo list=$(show list | tr ' ' ',')
