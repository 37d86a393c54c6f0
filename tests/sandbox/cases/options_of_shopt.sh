#!/bin/bash
train() { python3 -m verl.trainer.main_ppo "$@"; }
shopt -s lastpipe
n=0
printf '%s\n' a b | while read -r x; do n=$((n + 1)); last=$x; done
echo c d | read -r first second
train $n $last $first $second
read -r kept <<< "e"; train $kept
shopt -u lastpipe
echo f | read -r first; train $first
shopt -s nocasematch
[[ FOO == foo ]] && train equal
case Qwen-VL in *-vl) train vl;; esac
x=FooBar; [[ FOO =~ ^f(o+)$ ]] && train "${x/foo/Z}" "${x#foo}" ${BASH_REMATCH[1]}
[ A = a ] || train differs
shopt -u nocasematch
[[ FOO == foo ]] || train other
