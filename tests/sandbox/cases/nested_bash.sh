export SEED=3
LOCAL=no
bash parts/inner.sh 4 "two words"
bash "$(dirname $0)"/parts/inner.sh 8
