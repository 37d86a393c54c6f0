for stage in sft rl; do
cat > cfg_$stage.yaml <<-YAML
	stage: $stage
	lr: 1e-5
	YAML
name=$(grep stage cfg_$stage.yaml | cut -d' ' -f2)
lr=$(awk '/lr/ {print $2}' cfg_$stage.yaml)
python3 -m verl.trainer.main_ppo --config-name cfg_$stage stage=$name lr=$lr
done
