PY=$(which python3)
BIN=$(command -v torchrun)
$BIN --nproc_per_node 2 -m verl.trainer.sft_trainer a=1
