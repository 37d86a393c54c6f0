x=Hello_World
a=(one two)
declare -A d=([k]=v [m]="w x")
n=5; export n; readonly r=1; declare -i i=3; declare -l low=ABC
python3 -m verl.trainer.main_ppo a=${x~~} b=${x~} c=${a[@]~} k="${a[@]@K}" dk="${d[@]@K}" e="${a[*]@K}" xk=${x@K} "${a[@]@k}" q="${x@k}"
printf 'h\na\nb\nc\nd\n' > f.txt
mapfile -t -s 1 A < f.txt
mapfile -t -n 2 B < f.txt
{ mapfile -t -n 1 C; mapfile -tn 2 D; read -r E; } < f.txt
mapfile -d , -t F < <(printf 'p=1,q=2')
G=(z y x); mapfile -t -O 1 G <<< $'k\nl'
mapfile -t -s1 -n2 H < f.txt
python3 -m verl.trainer.main_ppo "${A[@]}" - "${B[@]}" - "${C[@]}" - "${D[@]}" - $E - "${F[@]}" - "${G[@]}" - "${H[@]}"
