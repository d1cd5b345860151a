#!/usr/bin/env bash
# Starts the training processes of one run on this machine. Rendered by orchestrator; every value is quoted.
# Values of launch.env that refer to ${env:NAME} are not in here: the training program reads them from its environment.
set -euo pipefail

: "${MASTER_ADDR:?set MASTER_ADDR to the address of the first machine}"
: "${NODE_RANK:?set NODE_RANK to 0 on the first machine, 1 on the second, and so on}"
: "${ORCHESTRATOR_LAUNCH_ID:?set ORCHESTRATOR_LAUNCH_ID to the same new word on every machine}"
export ORCHESTRATOR_LAUNCH_ID

export CUDA_DEVICE_MAX_CONNECTIONS=1
export OMP_NUM_THREADS=6
export PYTHONUNBUFFERED=1

# -P and --no-python: what lies in the working directory is not imported, neither by torchrun nor by its ranks.
exec /usr/bin/python3.11 -P -m torch.distributed.run \
  --nnodes 2 \
  --node-rank "${NODE_RANK}" \
  --master-addr "${MASTER_ADDR}" \
  --master-port "${MASTER_PORT:-29500}" \
  --rdzv-id "${ORCHESTRATOR_LAUNCH_ID}" \
  --nproc-per-node 4 \
  --no-python /usr/bin/python3.11 -P -u -m orchestrator.runtime \
  '/scratch/my runs/tiny/0123abcd'
