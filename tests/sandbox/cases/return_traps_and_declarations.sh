#!/bin/bash
f() { trap 'R+=f; trap - RETURN' RETURN; local z=1; R+=in; }
g() { trap 'R+=g' RETURN; }
h() { g; R+=h; return 3; }
k() { R+=k; }
f; h || R+=$?; k
k2() { g; trap 'R+=2' RETURN; }
k2; k
echo 'R+=s' > part.sh; . ./part.sh
python3 -m verl.trainer.main_ppo +r=$R
a=1; declare -x b=2; declare -i c=3; arr=(a "b \$c"); declare -rx d="q'q"; declare -l e=AB; sp="x y"
t=${sp@A}; eval "${t/sp/sq}"
python3 -m verl.trainer.main_ppo "${a@A}|${b@A}|${c@A}|${arr[@]@A}|${d@A}|${arr@A}|${arr[0]@A}|${nope@A}|${e@A}" "$sq" ${arr[@]@A}
