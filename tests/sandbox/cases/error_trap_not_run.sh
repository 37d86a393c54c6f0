T="python3 -m verl.trainer.main_ppo"
trap '$T never=$?' ERR
false && true
true && false && true
if false; then :; fi
if true && false; then :; fi
while true && ((0)); do :; done
! true
true && ! true
{ false && true; }
true && { false && true; } 2> /dev/null
[[ a == b ]] || ((1))
false || true && true
$T end=1
