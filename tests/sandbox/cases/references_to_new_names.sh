#!/bin/bash
# declare -n for a variable that has no value yet, in every way of giving it one.
train() { python3 -m verl.trainer.main_ppo "$@"; }
plain() { local -n out=$1; out=x; }
plain model
list() { local -n r=$1; r+=(a b); }
list items
keyed() { local -n m=$1; m[k]=v; }
declare -A map; keyed map
filled() { local -n q=$1; printf -v q %s p; read -r q <<< "$q.r"; }
filled text
lines() { local -n o=$1; mapfile -t o <<< $'c\nd'; }
lines rows
train $model "${items[*]}" ${map[k]} $text "${rows[*]}"
declare -n ref=fresh; ref=5; (( ref += 1 )); declare -n other=late; : ${other:=7}
train $fresh ${!ref} $late
declare -n gone=kept; kept=1; unset gone; train "${kept-unset}"; unset -n gone; gone=2; train "${kept-unset}" $gone
declare -n open; open=later; open=3; train $later
same() { local -n same_name=$1; same_name=z; }
same same_name 2> /dev/null; train "$same_name"
both() { local -n each; for each in "$@"; do each=$each+; done; }
a=1 b=2; both a b; train $a $b
caller() { local value; plain value; train "$value"; }
caller; train "${value-none}"
declare -n copied=words; read -ra copied <<< "a b"; train ${words[1]} ${#copied[@]}
declare -n array=later_array; array=(1 2); train "${later_array[@]}"
