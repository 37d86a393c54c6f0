function run-it() {
  python3 -m verl.trainer.main_ppo "$@"
}
run-it a=1; run-it b=2 &
wait
for x in a b; { run-it x=$x; }
if [[ ( 1 -eq 1 || 2 -eq 3 ) && ! ( a == b ) ]]; then run-it c=3; fi
time run-it d=4
run-it e=5 | cat
y=$(run-it f=6)
[[ abc == a?c && abc != @(x|y)* ]] && run-it g="${y:+set}"
