#!/bin/bash
# "${array[@]+...}" of an empty array is no word, that of a variable an empty one.
set -u
train() { python3 -m verl.trainer.main_ppo "n=$#" "$@"; }
empty=(); full=(a "b c")
train "${empty[@]+"${empty[@]}"}" x
train "${full[@]+"${full[@]}"}" x
train "${empty[@]+y}" "${empty[*]+y}" "${unset_one+y}" "${unset_one[@]+y}"
train "${@+"$@"}" "${@:+x}" "${1+"$@"}"
train "a${empty[@]+x}" ${empty[@]+x} "${empty[@]-}" "${empty[@]:-z}"
set -- ""; train "${@+"$@"}" "${@:+x}"
