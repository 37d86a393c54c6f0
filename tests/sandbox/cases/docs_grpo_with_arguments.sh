# arguments: trainer.nnodes=2 "trainer.experiment_name=my run" +extra.key=[1,2]
set -x
gsm8k_train_path=$HOME/data/gsm8k/train.parquet
gsm8k_test_path=$HOME/data/gsm8k/test.parquet
math_train_path=$HOME/data/math/train.parquet
train_files="['$gsm8k_train_path', '$math_train_path']"
test_files="['$gsm8k_test_path']"
python3 -m verl.trainer.main_ppo \
 data.train_files="$train_files" \
 data.val_files="$test_files" \
 trainer.logger=['console','wandb'] \
 trainer.total_epochs=15 "$@"
