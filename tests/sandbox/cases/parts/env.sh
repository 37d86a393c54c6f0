# Settings that several scripts share.
export DATA_ROOT=${DATA_ROOT:-/mnt/data}
COMMON_ARGS="trainer.nnodes=1 trainer.save_freq=10"
HERE=$(dirname "${BASH_SOURCE[0]}")
