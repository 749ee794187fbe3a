#!/usr/bin/env bash
# The runs behind the scores of td3_continuous_action.py: seeds 1 to 3 on three robots and seed 1 on three others, 1M
# steps, `JOBS` at a time, on the GPU if there is one (`nvidia-cuda-mps-control -d` lets several share it).
# The same command again skips what is finished and resumes what was interrupted; --dry-run only prints the commands.
set -euo pipefail
cd "$(dirname "$0")/.."

python -m cleanrl_utils.benchmark --num-seeds 3 --workers "${JOBS:-2}" "$@" \
  --env-ids HalfCheetah-v4 Walker2d-v4 Hopper-v4 \
  --command "python cleanrl/td3_continuous_action.py"
python -m cleanrl_utils.benchmark --num-seeds 1 --workers "${JOBS:-2}" "$@" \
  --env-ids InvertedPendulum-v4 Humanoid-v4 Pusher-v5 \
  --command "python cleanrl/td3_continuous_action.py"

[[ "$*" == *--dry-run* ]] && exit
python -m cleanrl_utils.rlops runs --exp-name td3_continuous_action \
  --append benchmark/results/td3_continuous_action.csv --output-filename runs/td3_continuous_action.png
python benchmark/update.py
