for s in 1 7; do
case $s in
 1) a=1 b=2 # c
 ;;
 7) a=7 b=$(echo 8)   
   c[1]=2 d="x
y" ;;
esac
if [ $s = 1 ]; then e=1 f=2 # note
elif [ $s = 7 ]; then
 e=3 \
 f=4
else e=5 f=6
fi
while true; do g=1 h=3
break; done
{ i=1 j=2
}
fn() { k=1 l=2
}
fn
a=1 b=2
# comment
python3 -m verl.trainer.main_ppo $a $b ${c[1]} "$d" $e $f $g $h $i $j $k $l
done
