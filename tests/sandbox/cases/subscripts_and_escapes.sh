#!/bin/bash
m=(3 4 5); declare -A k=([x]=2)
(( m[-1] += 10 ))
python3 -m verl.trainer.main_ppo $((m[-1])) $((m[-3] + k[x])) $(( ${m[-2]} )) "${m[*]}"
printf -v c '%q' "a b'c"
printf -v d '%q ' x=1 y=[1,2] "z={a: 1}" 'w=$HOME' '' '#a' 'b#' '~u' 'a=~' 'a:~' 'e~' '!^`"\\;&|<>()*?' @%+-_/.
python3 -m verl.trainer.main_ppo "$c" "$d" "$(printf '%q' "p q")"
[ "a" \< "b" ] && python3 -m verl.trainer.main_ppo less
[ 1 = 1 ] && [ "b" \> "a" ] && python3 -m verl.trainer.main_ppo greater
if [ "b" \< "a" ]; then python3 -m verl.trainer.main_ppo never; else python3 -m verl.trainer.main_ppo "n=$(expr 1 \< 2)" \<x\>; fi
