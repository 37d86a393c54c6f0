#!/bin/bash
at_least() { [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n1)" = "$2" ]; }
if at_least 0.10.1 0.9; then new=yes; else new=no; fi
at_least 0.6 0.6.0 && same=yes || same=no
python3 -m verl.trainer.main_ppo +new=$new +same=$same "+all=$(printf '1.10\n1.9\n1.9.1\n2\n' | sort -rV | paste -sd, -)"
