#!/bin/bash
#SBATCH --job-name=train-1
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --signal=B:USR1@100
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/home/me/spotmpi/runs/train-1/slurm/job.log
#SBATCH --account=lab
#SBATCH "--comment=a \"b\" 'c'"
cd /home/me/spotmpi/runs/train-1/slurm || exit 1
log=/home/me/spotmpi/runs/train-1/slurm/job.log
trap 'code=$?; echo "slurm.setup: $BASH_COMMAND ended with exit code $code; its output is in $log" >&2; exit $code' ERR
module load cuda/12.4
trap - ERR
cd /home/me/spotmpi/runs/train-1/slurm || exit 1
export SPOTMPI_IMAGE_PYTHONPATH="$PYTHONPATH" PYTHONPATH="$PWD/package"
trap ': > notice' USR1
trap 'exit 143' TERM
again=
while ! [ -e exit-code ]; do
  rm -f notice
  : > unstarted
  export SPOTMPI_RESTART_COUNT=$(($(wc -c < starts)))
  printf . >> starts
  srun --overlap --cpu-bind=none --export=ALL --mpi=none --kill-on-bad-exit=0 --wait=30 --output=/dev/null --error=job.log --open-mode=append python3 -S -u -m spotmpi.agent.slurm /home/me/spotmpi/runs/train-1 &
  agents=$!
  while kill -0 $agents 2> /dev/null; do wait $agents; done
  [ -e unstarted ] || { again=; continue; }
  [ "$again" ] && exit 1
  again=1
  scontrol ping > /dev/null 2>&1 || { until scontrol ping > /dev/null 2>&1; do sleep 5; done; sleep 5; }
done
exit "$(cat exit-code)"
