: ${MODEL:=Qwen/Qwen3-8B}
: "${DATA:=$HOME/data}" "${NAME:="quoted default"}"
: ${N:=$((2 * 4))}
python3 -m verl.trainer.main_ppo model=$MODEL data=$DATA name="$NAME" n=$N opt=${OPT:+opt=$OPT} ${EXTRA:-extra=1 more=2} "${EXTRA:-extra=1 more=2}"
