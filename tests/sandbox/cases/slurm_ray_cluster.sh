#!/bin/bash
#SBATCH --job-name=verl-ray
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --output=logs/%x-%j.out
# environment: SLURM_JOB_NODELIST=node[1-2] SLURM_NNODES=2 SLURM_JOB_ID=77 SLURM_CPUS_PER_TASK=64 SLURM_GPUS_PER_NODE=8

nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
nodes_array=($nodes)
head_node=${nodes_array[0]}
head_node_ip=$(srun --nodes=1 --ntasks=1 -w "$head_node" hostname --ip-address)
port=6379
ip_head=$head_node_ip:$port
export ip_head
echo "IP Head: $ip_head"
srun --nodes=1 --ntasks=1 -w "$head_node" \
    ray start --head --node-ip-address="$head_node_ip" --port=$port \
    --num-cpus "${SLURM_CPUS_PER_TASK}" --num-gpus "${SLURM_GPUS_PER_NODE}" --block &
sleep 10
worker_num=$((SLURM_JOB_NUM_NODES - 1))
for ((i = 1; i <= worker_num; i++)); do
    node_i=${nodes_array[$i]}
    srun --nodes=1 --ntasks=1 -w "$node_i" ray start --address "$ip_head" --block &
    sleep 5
done
PYTHONUNBUFFERED=1 srun --overlap --nodes=1 --ntasks=1 -w "$head_node" \
    python3 -m verl.trainer.main_ppo \
    trainer.nnodes="${SLURM_NNODES}" \
    trainer.n_gpus_per_node="${SLURM_GPUS_PER_NODE}" \
    trainer.experiment_name=job_$SLURM_JOB_ID 2>&1 | tee verl_demo_slurm.log
