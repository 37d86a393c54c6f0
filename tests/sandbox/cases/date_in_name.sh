TIMESTAMP=$(date +%Y%m%d_%H%M%S)
EXP="grpo_${TIMESTAMP}"
LOG_DIR=logs/$EXP
mkdir -p "$LOG_DIR"
python3 -m verl.trainer.main_ppo trainer.experiment_name=$EXP trainer.default_local_dir=/ckpt/$EXP/run \
   trainer.nnodes=1 2>&1 | tee "$LOG_DIR/train_$(date +%s).log"
