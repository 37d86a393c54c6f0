mapfile -t models <<EOF
Qwen/Qwen3-0.6B
Qwen/Qwen3-4B
EOF
readarray -t sizes < <(seq 2 2 6)
python3 -m verl.trainer.main_ppo models="${models[*]}" sizes=${sizes[*]} n=${#sizes[@]}
