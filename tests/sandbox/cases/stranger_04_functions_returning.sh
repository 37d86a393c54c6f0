is_big() { [[ "$1" -gt 10 ]]; }
get() { local -A m=([7]=2 [32]=4 [72]=8); printf '%s' "${m[$1]}"; }
for b in 7 32 72; do
    if is_big $b; then off=True; else off=False; fi
    python3 -m verl.trainer.main_ppo size=$b tp="$(get $b)" off=$off
done
