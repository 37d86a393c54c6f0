A=""
A+="data.train_batch_size=8 "
A+="data.val_batch_size=9 "
[ "${FOO:-bar}" = bar ] && A="${A}foo=bar "
A="${A% }"
B="$(echo "$A" | tr ' ' '\n' | sed 's/^data\.//' | paste -sd,)"
python3 -m verl.trainer.main_ppo $A len=${#A}
