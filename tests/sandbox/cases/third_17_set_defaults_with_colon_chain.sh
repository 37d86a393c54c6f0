set -eu
: ${A:=1} ${B:=$A$A} ${C:=${B}c}
D=${D:-$(echo "${C^^}")}
E=${E:-"${D}/${A:+x}"}
export A B
python3 -m verl.trainer.main_ppo a=$A b=$B c=$C d=$D e=$E
