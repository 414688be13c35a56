#!/bin/bash
#SBATCH --job-name=digits-1
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=3
#SBATCH --mem=3072M
#SBATCH --gres=gpu:2
#SBATCH --partition=spot
#SBATCH --time=121
#SBATCH --signal=B:USR1@70
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/home/me/runs/digits-1/slurm/job.log
cd /home/me/runs/digits-1/slurm || exit 1
export SPOTMPI_IMAGE_PYTHONPATH="$PYTHONPATH" PYTHONPATH="$PWD/package"
trap ': > notice' USR1
trap 'exit 143' TERM
again=
while ! [ -e exit-code ]; do
  rm -f notice
  : > unstarted
  export SPOTMPI_RESTART_COUNT=$(($(wc -c < starts)))
  printf . >> starts
  srun --overlap --cpu-bind=none --export=ALL --mpi=none --kill-on-bad-exit=0 --wait=30 --output=/dev/null --error=job.log --open-mode=append /home/me/.venv/bin/python -S -u -m spotmpi.agent.slurm /home/me/runs/digits-1 &
  agents=$!
  while kill -0 $agents 2> /dev/null; do wait $agents; done
  [ -e unstarted ] || { again=; continue; }
  [ "$again" ] && exit 1
  again=1
  scontrol ping > /dev/null 2>&1 || { until scontrol ping > /dev/null 2>&1; do sleep 5; done; sleep 5; }
done
exit "$(cat exit-code)"
