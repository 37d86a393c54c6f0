CFG='{"optim": {"lr": 1e-6}, "names": ["a b", "c"]}'
python3 -m verl.trainer.main_ppo "cfg='$CFG'" cfg2=\'"$CFG"\' c3="${CFG//\"/\\\"}" c4=${CFG//[[:space:]]/}
