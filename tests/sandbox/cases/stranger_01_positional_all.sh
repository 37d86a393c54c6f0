# arguments: grpo 8 2 "Qwen/Qwen3 8B" a.b=1 c="x y"
ALG=${1}; shift
NGPU=${1:-4}; NN=${2:-1}
shift 2
NAME="$1"; shift 1
echo "remaining: $@" >&2
HYDRA_FULL_ERROR=1 python3 -m verl.trainer.main_ppo algorithm.adv_estimator="$ALG" trainer.n_gpus_per_node="$NGPU" \
	trainer.nnodes="$NN"	actor_rollout_ref.model.path="$NAME" "${@}" n=$#
