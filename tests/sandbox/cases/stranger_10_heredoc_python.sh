cat > /tmp/never_$$.py <<PY
print("$HOME")
PY
CFG=$(cat <<'JSON'
{"a": [1, 2],
 "b": "$x"}
JSON
)
python3 - <<'PY'
print(1)
PY
python3 -m verl.trainer.main_ppo "cfg=$CFG"
