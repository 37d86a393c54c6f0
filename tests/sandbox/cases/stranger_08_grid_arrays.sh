lrs=(1e-6 5e-6); bss=(64 128); k=0
for lr in "${lrs[@]}"; do for bs in "${bss[@]}"; do
  k=$((k+1)); [[ $k == 2 ]] && continue
  (( k > 3 )) && break 2
  python3 -m verl.trainer.main_ppo lr=$lr bs=$bs k=$k
done; done
