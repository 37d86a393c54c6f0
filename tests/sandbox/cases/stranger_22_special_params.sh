# arguments: one "two three"
f() { echo "$#:$*:${FUNCNAME[0]}"; }
python3 -m verl.trainer.main_ppo "$(f "$@")" "${@:2}" "${@:$#}" "${!#}" "${*: -1}" opts="${-//[^e]/}" last="$_x"
set -- "${@:1:1}" new
python3 -m verl.trainer.main_ppo "$@" "${#@}"
