readonly N=4
declare -r MODEL=org/m
declare -i TOTAL=N*8
declare -u UP=abc
typeset -l LOW=ABC
export -n HOME2=3
python3 -m verl.trainer.main_ppo n=$N t=$TOTAL u=$UP l=$LOW m=$MODEL
