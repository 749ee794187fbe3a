#!/usr/bin/env bash
# The runs behind the scores of ppo_action_mask.py, and of ppo.py without a mask on the same task: seeds 1 to 3,
# 500,000 steps on the CPU, `JOBS` at a time.
# The same command again skips what is finished and resumes what was interrupted; --dry-run only prints the commands.
set -euo pipefail
cd "$(dirname "$0")/.."

python -m cleanrl_utils.benchmark --num-seeds 3 --workers "${JOBS:-2}" "$@" \
  --env-ids Taxi-v4 \
  --command "python cleanrl/ppo_action_mask.py --no-cuda"
python -m cleanrl_utils.benchmark --num-seeds 3 --workers "${JOBS:-2}" "$@" \
  --env-ids Taxi-v4 \
  --command "python cleanrl/ppo.py --no-cuda --learning-rate 1e-3 --num-envs 16"

[[ "$*" == *--dry-run* ]] && exit
python -m cleanrl_utils.rlops runs --exp-name ppo_action_mask ppo --env-ids Taxi-v4 \
  --append benchmark/results/ppo_action_mask.csv --output-filename runs/ppo_action_mask.png
python benchmark/update.py
