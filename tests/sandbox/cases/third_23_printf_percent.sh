printf '%s\n' "a=%d" 5 | while read -r l; do python3 -m verl.trainer.main_ppo "l=$l"; done
python3 -m verl.trainer.main_ppo x=$(printf '%d%%' 50) y=$(printf '%x-%o-%c' 255 8 abc) z="$(printf '%-5s|%5s' ab cd)" $(printf 'k%s=v%s ' 1 1 2 2)
