{
  echo "config"
  A=inside
} > cfg.txt 2>&1
while read -r w; do B=$w; done < cfg.txt
exec 3>&1
exec > >(tee -a all.log) 2>&1
python3 -m verl.trainer.main_ppo a=$A b=$B 2>&1 1>&3 | tee -a x.log
