N=3
bash <<'EOF'
python3 -m verl.trainer.main_ppo n=${N:-unset}
EOF
bash -s -- one two <<EOF
python3 -m verl.trainer.main_ppo n=$N first=\$1
EOF
