# arguments: lr 1e-6 bs 32
while (( $# )); do
  key=$1; val=$2; shift 2 || break
  OVR="${OVR:+$OVR }opt.$key=$val"
done
IFS=' ' read -r -a OVR_ARR <<<"$OVR"
python3 -m verl.trainer.main_ppo "${OVR_ARR[@]}" total=${#OVR_ARR[@]}
