log_and_run() {
  echo "+ $*" | tee -a cmd.log
  "$@"
}
log_and_run python3 -m verl.trainer.main_ppo a="b c" d=1
dry() { [ "${DRY_RUN:-0}" = 1 ] && echo "$@" || "$@"; }
dry env X=1 python3 -m verl.trainer.main_ppo dry=0
