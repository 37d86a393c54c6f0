for i in {1..3} {08..10..2} {a..c}; do
  echo "run $i"
done
python3 -m verl.trainer.main_ppo data.files={a,b}.parquet x={1..3} y={} z={one} 'q={a,b}' w=${HOME}{x,y}
