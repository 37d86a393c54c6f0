a=(one two "three four" five)
a[7]=eight
unset 'a[1]'
python3 -m verl.trainer.main_ppo n=${#a[@]} "slice=${a[*]:0:2}" last=${a[-1]} keys="${!a[*]}" "${a[@]/#/x.}" "${a[@]:2}"
