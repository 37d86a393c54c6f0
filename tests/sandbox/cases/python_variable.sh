PYTHON=${PYTHON:-python3}
$PYTHON -u -m verl.trainer.main_ppo trainer.nnodes=1
ENTRY="python3 -m verl.trainer.main_ppo"
$ENTRY trainer.nnodes=2
CMD=(python3 -m verl.trainer.main_ppo)
CMD+=("trainer.experiment_name=a b")
echo "${CMD[@]}"
"${CMD[@]}" trainer.nnodes=3
