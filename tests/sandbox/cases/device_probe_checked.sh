DEVICE=$(command -v npu-smi > /dev/null && echo "npu" || echo "gpu")
case "$DEVICE" in gpu) ;; *) echo unsupported; exit 1;; esac
python3 -m verl.trainer.main_ppo trainer.device=$DEVICE
answer() { true && echo yes || echo no; }
python3 -m verl.trainer.main_ppo known=$(answer) other=$(false && echo yes || echo no)
