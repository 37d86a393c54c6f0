case "$(hostname)" in
  login*) echo "not on a login node" >&2; exit 1 ;;
  node-*)
    N=8
    if [ ! -n "$N" ]; then exit 1; fi
    ;;
  *) exit 1 ;;
esac
python3 -m verl.trainer.main_ppo trainer.n_gpus_per_node=$N
case $(hostname) in old-*) exit 1;; esac
python3 -m verl.trainer.main_ppo second=1
