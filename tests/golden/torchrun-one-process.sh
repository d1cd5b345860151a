#!/usr/bin/env bash
# Starts the training processes of one run on this machine. Rendered by orchestrator; every value is quoted.
# Values of launch.env that refer to ${env:NAME} are not in here: the training program reads them from its environment.
set -euo pipefail

: "${ORCHESTRATOR_LAUNCH_ID:=$(date +%Y%m%d-%H%M%S)-by-hand}"
export ORCHESTRATOR_LAUNCH_ID

export CUDA_DEVICE_MAX_CONNECTIONS=1
export PYTHONUNBUFFERED=1

# -P and --no-python: what lies in the working directory is not imported, neither by torchrun nor by its ranks.
exec '/opt/my python/bin/python' -P -m torch.distributed.run \
  --standalone \
  --nproc-per-node 1 \
  --no-python '/opt/my python/bin/python' -P -u -m orchestrator.runtime \
  '/scratch/my runs/tiny/0123abcd'
