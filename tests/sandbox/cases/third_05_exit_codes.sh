run() { python3 -m verl.trainer.main_ppo "$@"; return $?; }
run a=1 || { echo fail; exit 1; }
rc=$?
if [ $rc -ne 0 ]; then run never=1; else run ok=$rc; fi
(exit 3); echo $?
case $? in 0) run last=0;; *) run last=x;; esac
