#!/bin/bash
# Redirects after a pipeline or a list are those of its last command.
echo a | cat > o
python3 -m verl.trainer.main_ppo v=$(cat o)
true && echo b > o; ! echo c | cat >> o
false || echo d | cat >> o
echo left && { echo e; } >> o
python3 -m verl.trainer.main_ppo "v=$(cat o | tr '\n' ,)"
printf 'b\na\n' | sort > l
while read -r x; do python3 -m verl.trainer.main_ppo x=$x; done < l
printf '1\n2\n' | sort > l && while read -r x; do s+=$x; done < l
echo f | while read -r x; do echo got $x; done > o
echo g | (cat; echo h) >> o && cat <<< i >> o
for n in 1 2; do echo none && { echo $n; } >> o; done
python3 -m verl.trainer.main_ppo s=$s "v=$(cat o | tr '\n' ,)"
true && cat > o <<EOF && python3 -m verl.trainer.main_ppo ok=1
document
EOF
{ true && echo j; } > p; ( echo k | cat ) > q; if true; then echo l; fi > r
true && python3 -m verl.trainer.main_ppo "v=$(cat o p q r | tr '\n' ,)" 2>&1 | tee log
true && { python3 -m verl.trainer.main_ppo a=2; } 2>&1 | tee log
