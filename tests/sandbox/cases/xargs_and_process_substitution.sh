T="python3 -m verl.trainer.main_ppo"
printf 'a=1\nb=2 3\n' | xargs -d '\n' -n1 $T one
printf 'a=1\nb=2 3\n' | xargs -d '\n' $T two
printf 'a=1 b=2\nc=3\n' | xargs -L 1 $T three
printf "x='1 2' \"y=3\"\n z=4\\\\ 5\n" | xargs $T four
printf " s='1 2' t\nu\n" | xargs -I{} $T five a={} '{}'
printf 'p=1\0q=2\0' | xargs -0 -n 1 $T six
printf '' | xargs $T seven
printf '' | xargs -r $T no
xargs -a <(printf 'trainer.total_epochs=1\ntrainer.save_freq=2\n') $T eight
echo "1 2 3" | xargs -n 2 $T nine
echo "1 2 3" | xargs -n2 -P4 bash -c "$T"' ten "$@"' _
printf '%s\n' "m=1 n=2" "m=3 n=4" | xargs -P 2 -I ARGS sh -c "$T eleven ARGS"
bash <(echo 'python3 -m verl.trainer.main_ppo procsub=1 $1') arg
. <(echo 'SRC=7')
source /dev/stdin <<< "SRC2=8"
$T src=$SRC src2=$SRC2 all=$(cat <(echo 1) <(echo 2) | paste -sd, -)
