set -euo pipefail
DEVICE=${DEVICE:-$(npu-smi info > /dev/null 2>&1 && echo npu || echo gpu)}
TRAINER=(trainer.nnodes=1)
case "${DEVICE}" in
    npu)
        TRAINER+=(trainer.n_gpus_per_node=16)
        ;;
    gpu) ;;
    *)
        echo "Unsupported DEVICE=${DEVICE}" >&2
        exit 1
        ;;
esac
[ "$DEVICE" = gpu ] || exit 1
if [[ $DEVICE == npu ]]; then
    TRAINER+=(trainer.logger=console)
fi
case x$DEVICE in
    xcpu|xtpu) exit 1 ;;
    *) TRAINER+=(trainer.val_before_train=False) ;;
esac
python3 -m verl.trainer.main_ppo trainer.device=${DEVICE} "${TRAINER[@]}" "$@"
