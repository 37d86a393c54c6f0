cleanup() { ray stop --force; rm -rf /tmp/x; }
trap cleanup EXIT INT TERM
trap 'python3 -m verl.trainer.main_ppo trapped=1' USR1
set -o errexit -o nounset
set -o pipefail
MODEL="${MODEL-Qwen/Qwen3-8B}"
[[ -v UNSET_THING ]] && echo yes || :
python3 -m verl.trainer.main_ppo model="$MODEL"
