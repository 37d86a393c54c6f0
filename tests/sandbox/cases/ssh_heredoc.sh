ssh -p 22 user@head "cd /work && python3 -m verl.trainer.main_ppo trainer.nnodes=1 x='a b'"
N=2
ssh head <<EOF
export FOO=bar
python3 -m verl.trainer.main_ppo trainer.nnodes=$N foo=\$FOO
EOF
