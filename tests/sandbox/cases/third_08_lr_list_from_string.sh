LRS="1e-6,2e-6;3e-6"
for lr in ${LRS//[,;]/ }; do
  tag=${lr/e-/em}
  python3 -m verl.trainer.main_ppo lr=$lr tag=lr${tag^^}
done
IFS=';' ; for g in $LRS; do python3 -m verl.trainer.main_ppo group=$g; done
