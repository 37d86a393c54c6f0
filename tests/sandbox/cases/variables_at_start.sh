#!/bin/bash
# What bash sets in every shell: IFS, OPTIND, PS4; and what is of the machine.
set -u
OLD_IFS="$IFS"
IFS=','
read -ra models <<< "a,b"
IFS="$OLD_IFS"
EXTRA="x=1 y=2"
python3 -m verl.trainer.main_ppo "${models[@]}" $EXTRA "<$IFS>" next=$OPTIND ps4="$PS4"
split() { local IFS=:; set -- $1; echo "$#.$IFS"; }
python3 -m verl.trainer.main_ppo "$(split a:b:c)" "<$IFS>" bash="$BASH" level=$SHLVL version=${BASH_VERSINFO[0]}
while getopts m: option; do :; done
IFS=+ bash -c 'python3 -m verl.trainer.main_ppo inner="$IFS" at=$OPTIND'
unset IFS
python3 -m verl.trainer.main_ppo $EXTRA ifs="${IFS-none}"
if (( BASH_VERSINFO[0] < 4 )); then echo "bash 4 is needed"; exit 1; fi
python3 -m verl.trainer.main_ppo x=1
