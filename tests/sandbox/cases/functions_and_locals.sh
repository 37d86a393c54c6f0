log() { echo "[$(date)] $*" >&2; }
common_args() {
  local bs=$1
  echo "data.train_batch_size=$bs actor_rollout_ref.actor.ppo_mini_batch_size=$((bs / 4))"
}
run() {
  local name=$1 n=${2:-8}
  shift 2
  log "starting $name"
  python3 -m verl.trainer.main_ppo trainer.experiment_name="$name" actor_rollout_ref.rollout.n="$n" $(common_args 256) "$@"
}
run baseline 4
run more_samples 16 algorithm.adv_estimator=rloo
function finish {
  log end
}
finish
