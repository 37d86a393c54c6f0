# arguments: 
RESUME=""
CKPT=/ckpt/global_step_10
ARGS=()
[ -n "$RESUME" ] && ARGS+=("trainer.resume_from_path=$RESUME")
[[ -n "$CKPT" ]] && ARGS+=("trainer.resume_from_path=$CKPT")
python3 -m verl.trainer.main_ppo ${RESUME:+trainer.resume=$RESUME} ${CKPT:+"ckpt=$CKPT"} "${ARGS[@]}" "${NONE[@]}" ${NONE[@]} "$@"
