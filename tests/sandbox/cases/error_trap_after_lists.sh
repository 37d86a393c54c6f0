T="python3 -m verl.trainer.main_ppo"
trap '$T after=$?.$N' ERR
N=1; true && false
N=2; false || false
N=3; [[ a == b ]]
N=4; ((0))
N=5; x=$(false)
N=6; true && [[ a == b ]] && true || ((0))
N=7; true && { false; }
N=8; { true && false; } > /dev/null
N=9; ((0)) 2> /dev/null
N=10; true && (exit 3)
N=11; if true; then true && (exit 4); fi
N=12; true && true | false
f() { true && return 5; }
N=13; f
N=14; true && f
N=15; true && if true; then false; fi
$T end=1
