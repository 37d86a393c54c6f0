a=7; b=2
let c=a*b
let "d = a ** b" "e = d % 10"
((f = a > b ? 100 : 200))
g=$[a+b]
h=$((a/b)) i=$(( -a / b )) j=$((16#ff)) k=$((0x10 | 1)) l=$((1<<4)) m=$((a++ + ++b))
declare -i n=3+4
n+=2
python3 -m verl.trainer.main_ppo $a $b $c $d $e $f $g $h $i $j $k $l $m $n $((a,b)) $(( (a+b)*2 )) $((!a)) $((a&&b))
