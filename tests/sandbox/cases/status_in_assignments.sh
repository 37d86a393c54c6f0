#!/bin/bash
# $? in an assignment is that of the command before it.
f() { return 7; }
f; a=$?
v=$(f) || b=$?
v=$(f); c=$?
x=$? y=$(exit 3) z=$?; d=$?
false; e=1; g=$?
array=($(exit 4)); h=$?
false; $nothing; i=$?
g() { local rc=$?; declare other=$?; echo "$rc.$other"; }
false; j=$(g)
false; k[$?]=one
true | false; l="${PIPESTATUS[*]}"
m="${PIPESTATUS[*]}"
[[ a == b ]]; n="${PIPESTATUS[0]}"
if f; then o=0; else o=$?; fi
set -eu; p=$-
python3 -m verl.trainer.main_ppo $a $b $c $d $x $z $g $h $i $j "${!k[@]}" "$l" "$m" $n $o $p
