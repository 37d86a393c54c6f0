join_by() { local IFS="$1"; shift; echo "$*"; }
files=(a.parquet b.parquet)
joined=$(join_by , "${files[@]}")
printf -v name 'run_%02d_%s' 5 test
quoted=$(printf "'%s'," "${files[@]}")
python3 -m verl.trainer.main_ppo data.train_files="[$joined]" data.val_files="[${quoted%,}]" trainer.experiment_name=$name
