#!/bin/bash
cd "$(dirname "$0")"
source ./parts/env.sh
. parts/common.sh Qwen3
python3 -m verl.trainer.main_ppo $COMMON_ARGS model=$MODEL_NAME path=$DATA_ROOT/train.parquet "${SHARED[@]}"
