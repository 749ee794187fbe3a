#!/usr/bin/env bash
# The runs behind the scores of rpo_continuous_action.py: seeds 1 to 3 on three robots and seed 1 on three others, 1M
# steps, and seed 1 on the first three for its own default of 8M steps, on the CPU, as many at a time as there are cores.
# The same command again skips what is finished and resumes what was interrupted; --dry-run only prints the commands.
set -euo pipefail
cd "$(dirname "$0")/.."

python -m cleanrl_utils.benchmark --num-seeds 3 --workers "${JOBS:-$(nproc)}" "$@" \
  --env-ids HalfCheetah-v4 Walker2d-v4 Hopper-v4 \
  --command "python cleanrl/rpo_continuous_action.py --no-cuda --total-timesteps 1000000 --save-model"
python -m cleanrl_utils.benchmark --num-seeds 1 --workers "${JOBS:-$(nproc)}" "$@" \
  --env-ids InvertedPendulum-v4 Humanoid-v4 Pusher-v5 \
  --command "python cleanrl/rpo_continuous_action.py --no-cuda --total-timesteps 1000000 --save-model"
python -m cleanrl_utils.benchmark --num-seeds 1 --workers "${JOBS:-$(nproc)}" "$@" \
  --env-ids HalfCheetah-v4 Walker2d-v4 Hopper-v4 \
  --command "python cleanrl/rpo_continuous_action.py --no-cuda --save-model"

[[ "$*" == *--dry-run* ]] && exit
python -m cleanrl_utils.rlops runs --exp-name rpo_continuous_action \
  --append benchmark/results/rpo_continuous_action.csv --output-filename runs/rpo_continuous_action.png
python benchmark/update.py
