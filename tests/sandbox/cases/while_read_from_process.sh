while read -r size; do
  python3 -m verl.trainer.main_ppo size=$size
done < <(printf '%s\n' 1 2 4)
echo "7 8" | while read a b; do python3 -m verl.trainer.main_ppo a=$a b=$b; done
read -r x y rest <<< "one two three four"
IFS=: read -ra parts <<< "p:q:r"
python3 -m verl.trainer.main_ppo x=$x rest="$rest" n=${#parts[@]} last=${parts[2]}
