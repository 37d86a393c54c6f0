a="b"'c'"$HOME"'/d'
python3 -m verl.trainer.main_ppo data.path="'"$a"'" x='['"$a"']' y="[\"$a\"]" z="$(echo "inner $(echo "deep $a")")" \
w=`echo \`echo nested\`` v="a${a:+"(${a})"}b"
