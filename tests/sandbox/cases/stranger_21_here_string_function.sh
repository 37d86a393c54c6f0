trim() { local s="$*"; s="${s#"${s%%[![:space:]]*}"}"; s="${s%"${s##*[![:space:]]}"}"; printf '%s' "$s"; }
X=$(trim "   padded value  ")
python3 -m verl.trainer.main_ppo "x=$X" y="$(trim a b)"
