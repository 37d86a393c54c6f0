set -Eeuo pipefail
T="python3 -m verl.trainer.main_ppo"
trap 'echo "failed: $BASH_COMMAND" >&2; exit 1' ERR
g() { if [[ -z "$1" ]]; then return 0; fi; [ "$1" = a ] && echo yes || echo no; }
x=$(g a); y=$(g b); n=0
((n++)) || true
[[ $n -gt 5 ]] && z=1
for i in 1 2; do [ $i = 3 ] || continue; done
while [ $n -lt 3 ]; do n=$((n+1)); done
grep -q zzz <<< "abc" || w=none
$T x=$x y=$y n=$n w=$w
h() { trap 'echo local' ERR; false || true; return 0; }
h
$T done=1
