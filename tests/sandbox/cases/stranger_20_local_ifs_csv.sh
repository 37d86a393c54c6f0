csv="seed,lr
1,1e-6
2,2e-6"
first=1
echo "$csv" | while IFS=, read -r seed lr; do
  if [ $first = 1 ]; then first=0; continue; fi
  python3 -m verl.trainer.main_ppo seed=$seed lr=$lr
done
OLDIFS=$IFS; IFS=$'\n'
for line in $csv; do IFS=,; set -- $line; IFS=$'\n'; echo "$1"; done
IFS=$OLDIFS
python3 -m verl.trainer.main_ppo last=$2
