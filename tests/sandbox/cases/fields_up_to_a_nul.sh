#!/bin/bash
read -r -d '' ARGS <<'EOF' || true
data.train_batch_size=32
data.max_prompt_length=256
trainer.logger=["console"]
EOF
IFS=$'\n' read -r -d '' -a LINES < <(echo "$ARGS" && printf '\0')
python3 -m verl.trainer.main_ppo $ARGS
python3 -m verl.trainer.main_ppo "${LINES[@]}"
OVERRIDES=$(cat <<'EOF' | grep -v '^#' | tr '\n' ' '
# comment
a=1
b=2
EOF
)
python3 -m verl.trainer.main_ppo $OVERRIDES
