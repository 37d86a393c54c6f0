#!/usr/bin/env bash
set -e
ENV_FILE="$(dirname "$0")/parts/settings.env"
if [[ -f "$ENV_FILE" ]]; then
  export $(grep -v '^#' "$ENV_FILE" | grep TP | xargs)
fi
python3 -m verl.trainer.main_ppo tp=$TP
while IFS='=' read -r name value; do
  [[ $name =~ ^[A-Z_]+$ ]] || continue
  printf -v "$name" '%s' "$value"
done < "$ENV_FILE"
python3 -m verl.trainer.main_ppo path=$MODEL_PATH first="$(grep -m1 TP "$ENV_FILE" || echo none)"
