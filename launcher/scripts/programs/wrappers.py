"""Commands that start other commands, and their options that take the next word as a value."""

from __future__ import annotations

_VALUES = """
nice: -n --adjustment
ionice: -c -n -p
timeout: -k -s --kill-after --signal
stdbuf: -i -o -e
taskset:
numactl: -N -m -C -i -p
setsid:
nohup:
time: -f -o
chrt: -p
sudo: -u -g -h -p -C -r -t -U --user --group
doas: -u
command:
builtin:
exec: -a
caffeinate: -t -w
env: -u -C -S --unset --chdir
xargs: -I -n -P -L -d -a -E -s -r --max-args --max-procs --delimiter --replace --arg-file
conda: -n -p --name --prefix --cwd
mamba: -n -p --name --prefix --cwd
micromamba: -n -p --name --prefix --cwd
uv: --with --python -p --extra --group --env-file --project --directory --package --with-requirements
poetry: -C --directory -P
pipenv:
pixi: -e --environment --manifest-path
hatch: -e
nsys: -o -t -c -s --output --trace -w -f --capture-range --sample --cuda-memory-usage
ncu: -o --set -k -c
py-spy: -o -f -r -d
kernprof: -o
script: -c
unbuffer:
tini:
dumb-init:
srun: -N -n -c -w -x -p -A -J -t -o -e -i -D -G -C -q -d -m -r --nodes --ntasks --ntasks-per-node --nodelist
    --cpus-per-task --gpus --gpus-per-node --gpus-per-task --gres --mem --partition --account --job-name
    --time --output --error --chdir --container-image --container-mounts --container-workdir --container-name
    --container-env --export --mpi --jobid --exclude --qos --constraint --reservation --cpu-bind
    --distribution --relative --input --nice --kill-on-bad-exit --network
mpirun: -n -np -c -N -H -host --host --hostfile -hostfile -machinefile -npernode -ppn --mca -mca -x --map-by
    --bind-to -map-by -bind-to -wdir --wdir -f
ray: --address --runtime-env --runtime-env-json --working-dir --submission-id --job-id --metadata-json
    --entrypoint-num-cpus --entrypoint-num-gpus --entrypoint-resources --entrypoint-memory --log-style
    --log-color --headers --verify
torchrun: --nnodes --nproc-per-node --nproc_per_node --node-rank --node_rank --master-addr --master_addr
    --master-port --master_port --rdzv-backend --rdzv_backend --rdzv-endpoint --rdzv_endpoint --rdzv-id
    --rdzv_id --rdzv-conf --rdzv_conf --max-restarts --max_restarts --monitor-interval --monitor_interval
    --start-method --start_method --role --log-dir --log_dir -r -t --redirects --tee --local-ranks-filter
    --local_ranks_filter --local-addr --local_addr --logs-specs --logs_specs
accelerate: --config_file --config-file --num_processes --num-processes --num_machines --num-machines
    --machine_rank --machine-rank --main_process_ip --main-process-ip --main_process_port --main-process-port
    --mixed_precision --mixed-precision --num_cpu_threads_per_process --dynamo_backend --gpu_ids --gpu-ids
    --rdzv_backend --same_network --deepspeed_config_file --zero_stage --gradient_accumulation_steps
    --fsdp_sharding_strategy --fsdp_auto_wrap_policy --deepspeed_multinode_launcher
    --fsdp_transformer_layer_cls_to_wrap --fsdp_state_dict_type --fsdp_version --fsdp_backward_prefetch
deepspeed: -H --hostfile -i --include -e --exclude --num_nodes --num_gpus --master_port --master_addr
    --launcher --launcher_args --node_rank --module_path --bind_cores_to_rank
docker: -e --env --env-file -v --volume --mount -w --workdir --name --gpus --shm-size --network --net --ipc
    --ulimit -u --user -p --publish --entrypoint --runtime --memory --cpus --device --cap-add --security-opt
    --add-host -h --hostname --label -l --log-driver --log-opt --pid --platform --cpuset-cpus -m --pull
    --restart --hooks-dir --tmpfs --userns --uts --volumes-from
kubectl: -n --namespace -c --container -f --filename --context --kubeconfig --cluster --user --image --restart
    --pod-running-timeout --as
apptainer: -B --bind --env --env-file --pwd --home -H -W --workdir --overlay -S --scratch
enroot: -m --mount -e --env
ssh: -i -p -o -l -F -J -L -R -D -b -c -E -I -m -Q -S -W -w
pdsh: -w -x -R -f -l -u -t -g
sbatch: -N -n -c -w -x -p -A -J -t -o -e -D -G -C -q -d --nodes --ntasks --ntasks-per-node --gres --partition
    --account --job-name --time --output --error --chdir --export --dependency --array -a --mem
    --cpus-per-task --gpus-per-node --qos --wrap
tmux:
screen:
"""


def _table(text: str) -> dict[str, frozenset[str]]:
    """Reads `name: options`; indented lines go on."""
    found: dict[str, frozenset[str]] = {}
    for line in text.strip().replace("\n    ", " ").splitlines():
        name, _, options = line.partition(":")
        found[name] = frozenset(options.split())
    return found


VALUES = _table(_VALUES)
"""By the name of the command; an empty set where no option takes a word."""
ALIASES = {
    "mpiexec": "mpirun",
    "singularity": "apptainer",
    "podman": "docker",
    "nvidia-docker": "docker",
    "clush": "pdsh",
    "orterun": "mpirun",
    "gtimeout": "timeout",
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "nerdctl": "docker",
    "oc": "kubectl",
}
SUBCOMMANDS = {
    "conda": ("run",),
    "mamba": ("run",),
    "micromamba": ("run",),
    "uv": ("run",),
    "poetry": ("run",),
    "pipenv": ("run",),
    "pixi": ("run",),
    "hatch": ("run",),
    "accelerate": ("launch",),
    "ray": (
        "job",
        "submit",
    ),
    "nsys": ("profile",),
    "docker": (
        "run",
        "exec",
    ),
    "apptainer": (
        "exec",
        "run",
    ),
    "kubectl": ("exec", "run"),
    "enroot": ("start",),
    "py-spy": ("record",),
}
"""The words that make it start something: `conda run`, `ray job submit`."""
POSITIONAL = {"timeout": 1, "taskset": 1, "ssh": 1, "docker": 1, "kubectl": 1, "apptainer": 1, "enroot": 1, "chrt": 1}
"""Words between the options and the command: a duration, a mask, a host, an image."""
