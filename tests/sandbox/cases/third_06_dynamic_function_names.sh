train_grpo() { python3 -m verl.trainer.main_ppo alg=grpo "$@"; }
train_ppo() { python3 -m verl.trainer.main_ppo alg=ppo "$@"; }
for a in grpo ppo; do train_$a x=$a; done
"train_${ALG:-grpo}" from=var
type train_ppo >/dev/null 2>&1 && train_ppo typed=1
declare -f train_none > /dev/null || echo none
