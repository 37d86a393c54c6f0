LAUNCHER="accelerate launch --num_machines 1 --num_processes 4 --main_process_port $((29500+1))"
SCRIPT=train_sft.py
$LAUNCHER $SCRIPT --config conf.yaml model.name=x \
    lr=1e-5
LAUNCH2=(torchrun --nproc_per_node=2)
"${LAUNCH2[@]}" "$SCRIPT" y=2
