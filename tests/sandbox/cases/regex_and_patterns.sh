MODEL=Qwen2.5-7B-Instruct
if [[ $MODEL =~ ^([A-Za-z]+)([0-9.]+)-([0-9]+)B ]]; then
  family=${BASH_REMATCH[1]} version=${BASH_REMATCH[2]} size=${BASH_REMATCH[3]}
fi
case $MODEL in
  *-Instruct) kind=chat ;;
  *-Base | *-base) kind=base ;;
  *) kind=other
esac
case "$size" in [0-9]) mb=8 ;; [1-9][0-9]) mb=2 ;; esac
python3 -m verl.trainer.main_ppo f=$family v=$version s=$size k=$kind mb=$mb
