#!/bin/bash
TMP=$(mktemp -d)
trap 'rm -rf "$TMP"' EXIT
{
  echo "defaults:"
  echo "  - ppo_trainer"
  echo "  - _self_"
  printf 'trainer:\n  total_epochs: %d\n' 4
} > "$TMP/cfg.yaml"
python3 -m verl.trainer.main_ppo --config-path "$TMP" --config-name cfg trainer.nnodes=1
