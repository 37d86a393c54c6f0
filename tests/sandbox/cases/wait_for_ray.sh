EXPECTED=2
while true; do
  N=$(echo 2)
  if [ "$N" -ge "$EXPECTED" ]; then
    echo ready
    break
  fi
  sleep 5
done
until [ "${READY:-no}" = "yes" ]; do READY=yes; done
count=0
while (( count < 3 )); do count=$((count+1)); [ $count -eq 2 ] && continue; echo $count; done
python3 -m verl.trainer.main_ppo count=$count ready=$READY
