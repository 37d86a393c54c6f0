#!/bin/bash
source parts/lib.sh 2>/dev/null || true
cfg() { local -A c; c[lr]=1e-6; c[n]=8; for k in lr n; do printf '%s=%s\n' "$k" "${c[$k]}"; done; }
while IFS='=' read -r k v; do
  case $k in lr) lr=$v;; n) n=$v;; esac
done < <(cfg)
while IFS= read -r line; do out="$out${out:+,}$line"; done <<< "$(cfg)"
cfg | while read -r l; do echo "$l"; lost=1; done
mapfile -t A < <(cfg | cut -d= -f2)
cat <<EOF > args.txt
+lr=$lr
+n=$n
EOF
python3 -m verl.trainer.main_ppo lr=$lr n=$n out=$out lost=${lost:-0} "${A[@]/#/v=}" $(<args.txt) $(cat args.txt | tr '\n' ' ')
