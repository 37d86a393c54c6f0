#!/bin/bash
# environment: MODEL=Qwen/Qwen2.5-Math-7B-Instruct
re='^([^/]+)/([A-Za-z]+)([0-9.]+)?-?(.*)-([0-9.]+)[bB](-.*)?$'
if [[ $MODEL =~ $re ]]; then
  org=${BASH_REMATCH[1]} family=${BASH_REMATCH[2]} ver=${BASH_REMATCH[3]} kind=${BASH_REMATCH[4]} size=${BASH_REMATCH[5]}
  suffix=${BASH_REMATCH[6]#-}
else
  echo "bad model" ; exit 1
fi
printf -v exp '%s_%s_%05.1fB_%s' "${family,,}" "$ver" "$size" "${suffix:-base}"
python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=$MODEL trainer.experiment_name=$exp \
  trainer.project_name="${org}-${kind:-none}" n=${#BASH_REMATCH[@]}
