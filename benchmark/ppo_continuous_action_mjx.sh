#!/usr/bin/env bash
# The runs behind the scores of ppo_continuous_action_mjx.py: 3 robots, 100M steps on the GPU. One program trains seeds
# 1 to 3 of a robot, so that the benchmark starts it once, with seed 1.
# The same command again skips what is finished and resumes what was interrupted; --dry-run only prints the commands.
set -euo pipefail
cd "$(dirname "$0")/.."

python -m cleanrl_utils.benchmark --num-seeds 1 --workers "${JOBS:-1}" "$@" \
  --env-ids ant humanoid halfcheetah \
  --command "python cleanrl/ppo_continuous_action_mjx.py --num-seeds 3 --total-timesteps 100000000"

[[ "$*" == *--dry-run* ]] && exit
python -m cleanrl_utils.rlops runs --exp-name ppo_continuous_action_mjx \
  --append benchmark/results/ppo_continuous_action_mjx.csv --output-filename runs/ppo_continuous_action_mjx.png
python benchmark/update.py
