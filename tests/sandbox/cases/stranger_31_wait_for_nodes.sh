NNODES=2
ray start --head
while true; do
    count=$(ray status 2>/dev/null | grep -c "node_")
    if [ "$count" -eq "$NNODES" ]; then
        break
    fi
    echo "waiting ($count)"; sleep 5
done
python3 -m verl.trainer.main_ppo trainer.nnodes=$NNODES
