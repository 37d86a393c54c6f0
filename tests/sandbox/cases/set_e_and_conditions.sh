set -euo pipefail
trap 'echo failed at $LINENO' ERR
grep -q foo <<< "bar" || echo "no foo"
if ! grep -q foo <<< "bar"; then X=1; fi
[[ -d /nonexistent/data ]] || mkdir -p out
[ "${SKIP:-}" ] && exit 3
echo "a b" | grep -c a > /dev/null && Y=2
python3 -m verl.trainer.main_ppo x=$X y=$Y
