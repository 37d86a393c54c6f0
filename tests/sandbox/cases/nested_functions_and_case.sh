setup_model() {
  case "${1,,}" in
    qwen*|llama)
      MODEL="org/$1"
      ;;&
    qwen*) TEMPLATE=chatml ;;
    *) TEMPLATE=${TEMPLATE:-plain}
  esac
}
setup_tp() { local size=${1%B}; if [ "$size" -ge 70 ]; then echo 8; elif (( size >= 30 )); then echo 4; else echo 1; fi; }
main() {
  local model="$1"; shift
  setup_model "$model"
  TP=$(setup_tp "72B")
  python3 -m verl.trainer.main_ppo model=$MODEL template=$TEMPLATE tp=$TP "$@"
}
main "Qwen2.5-72B" a.b=c
main Llama "${@}"
