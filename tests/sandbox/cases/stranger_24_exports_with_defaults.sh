export NCCL_IB_HCA=${NCCL_IB_HCA:-mlx5_0:1,mlx5_1:1}
export HF_HOME="${HF_HOME:=/cache/hf}"
export PATH=/opt/bin:$PATH LD_LIBRARY_PATH="/usr/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export no_proxy='localhost,127.0.0.1' EMPTY=
python3 -m verl.trainer.main_ppo hf=$HF_HOME
