for cfg in conf_a conf_b; do
  [ -e "$cfg.skip" ] && continue
  out="out/${cfg#conf_}"
  mkdir -p $out && cp x $out/ || true
  python3 -m verl.trainer.main_ppo --config-name=$cfg out=$out 2>&1 >"$out.log" &
  (( ++count % 2 == 0 )) && wait
done
wait; python3 -m verl.trainer.main_ppo count=$count
