build() {
  local -n out=$1
  local extra=("${@:2}")
  out+=(base.x=1 "${extra[@]}")
}
declare -a CMD=()
build CMD y=2 "z=a b"
python3 -m verl.trainer.main_ppo "${CMD[@]}"
