MODEL_PATH="/mnt/ckpts/Qwen2.5-Math-7B-Instruct/"
MODEL_PATH=${MODEL_PATH%/}
name=$(basename "${MODEL_PATH}" | tr '[:upper:]' '[:lower:]' | sed 's/\./_/g')
short=${name%%-*}
size=$(echo $name | grep -oE '[0-9]+b')
num=${size//[^0-9]/}
python3 -m verl.trainer.main_ppo name=$name short=$short size=$size num=$num gpus=$(( num > 10 ? 16 : 8 )) y="${name: -8:3}"
