#!/bin/bash
alias train='echo none'
train a=0
shopt -s expand_aliases
alias train='python3 -m verl.trainer.main_ppo trainer.nnodes=1' python3='python3 -u'
train a=1 "b=c d" > log.txt 2>&1
LR=1e-6 train +lr=$LR &
wait
python3 -m verl.trainer.main_ppo +c=1
unalias train
train a=2
