for ((i=0, j=10; i<j; i+=4, j-=1)); do
  v=$((i*j)); w=$(( (i+1) * 2 ** 3 % 7 ))
  python3 -m verl.trainer.main_ppo i=$i j=$j v=$v w=$w h=$((0x1F + 010)) neg=$((-7/2)) mod=$((-7%3)) c=$((i==0?1:i)) s=$((1<<i))
done
