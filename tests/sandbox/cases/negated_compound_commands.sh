#!/bin/bash
set -e
r=""
if ! { true && [ -n "$HOME" ]; } >/dev/null 2>&1; then r+=a; else r+=b; fi
if ! { false; true; }; then r+=c; fi
n=3
if ! (( n > 5 )); then r+=d; else r+=e; fi
! { true; } || r+=f
! { false; } && r+=g
! { false; true; } | cat && r+=h || r+=i
if ! for x in 1 2; do false; done; then r+=j; fi
while ! { [ $n -gt 5 ]; }; do n=$((n+1)); done
if ! { [ $n = 6 ] && { true; }; }; then r+=k; elif ! \
   { [ $n = 7 ]; }; then r+=l; fi
! { false; }
! ((n == 6))
f() { ! { return 0; }; }
f && r+=m || r+=n
if [[ $n == 6 ]] && ! { [[ $n == 7 ]]; }; then r+=o; fi
if ! ( [ $n = 7 ]; ) && ! [[ $n == 7 ]]; then r+=p; fi
if ! if false; then true; else false; fi; then r+=q; fi
python3 -m verl.trainer.main_ppo +r=$r +n=$n "+text=! { a" '+t=! (( b'
