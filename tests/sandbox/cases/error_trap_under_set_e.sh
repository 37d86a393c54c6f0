#!/bin/bash
set -eE
f() { X=1; }
on_err() { echo "err at $1"; python3 -m verl.trainer.main_ppo recovered=1; }
trap 'on_err $LINENO' ERR
f
false || true
python3 -m verl.trainer.main_ppo x=$X
missing() { return 3; }
missing
python3 -m verl.trainer.main_ppo never=1
