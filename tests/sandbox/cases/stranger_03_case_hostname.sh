case "$(hostname)" in
  node*) DATA=/fast; ;;
  login*) DATA=/slow ;;
  *) DATA=/default ;;
esac
python3 -m verl.trainer.sft_trainer data.dir=${DATA}
