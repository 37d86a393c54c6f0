# arguments: -m Qwen/Qwen3-0.6B -g4 -d extra.word=1
usage() { echo "usage: $0 -m model" 1>&2; exit 1; }
gpus=8
debug=0
while getopts ":m:g:dh" opt; do
  case ${opt} in
    m ) model=$OPTARG ;;
    g ) gpus=$OPTARG ;;
    d ) debug=1 ;;
    h ) usage ;;
    \? ) echo "bad $OPTARG"; usage ;;
    : ) echo "missing"; usage ;;
  esac
done
shift $((OPTIND - 1))
[ -z "$model" ] && usage
python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=$model trainer.n_gpus_per_node=$gpus debug=$debug $*
