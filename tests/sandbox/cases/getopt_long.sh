# arguments: --model Qwen/Qwen3-0.6B --nodes=2 rest.of=it
OPTS=$(getopt -o m:n:v --long model:,nodes:,verbose -n run.sh -- "$@")
if [ $? != 0 ]; then echo "failed" >&2; exit 1; fi
eval set -- "$OPTS"
while true; do
  case "$1" in
    -m | --model ) MODEL="$2"; shift 2 ;;
    -n | --nodes ) NODES="$2"; shift 2 ;;
    -v | --verbose ) VERBOSE=1; shift ;;
    -- ) shift; break ;;
    * ) break ;;
  esac
done
python3 -m verl.trainer.main_ppo model=$MODEL nodes=$NODES "$@"
