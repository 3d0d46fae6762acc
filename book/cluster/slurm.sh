#!/bin/bash
# sbatch book/cluster/slurm.sh --dp 16 --zero 1 --steps 500
# Submit it from the project's folder, with the environment that is to run: sbatch hands both on.
#SBATCH --job-name=train
#SBATCH --nodes=2                   # change
#SBATCH --gpus-per-node=8           # change
#SBATCH --ntasks-per-node=1         # one agent on each node; it starts a rank for each GPU
#SBATCH --time=24:00:00             # change; add what your cluster asks for, as --account or --partition
#SBATCH --signal=B:TERM@300         # 300 to 360 s before that, a signal to this script (B), not to the ranks
#SBATCH --requeue                   # if a node fails, Slurm starts the job again
#SBATCH --open-mode=append          # one log of all starts
#SBATCH --output=train-%j.log

folder=${FOLDER:-checkpoints}       # change: where all nodes write

again() {  # wait for a save, 240 s at most, then end the ranks and queue up again; the next start goes on from it
    bash book/cluster/next_save.sh "$folder" 240
    scontrol requeue "$SLURM_JOB_ID"
}
trap again TERM

host=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 10000))  # two jobs may share a node
srun --kill-on-bad-exit=1 torchrun \
    --nnodes="$SLURM_NNODES" --nproc-per-node="${SLURM_GPUS_ON_NODE:-1}" \
    --rdzv-backend=c10d --rdzv-endpoint="$host:$port" --rdzv-id="$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}" \
    book/train.py --folder "$folder" "$@" &
wait $!  # a command in the foreground would keep bash from its trap
