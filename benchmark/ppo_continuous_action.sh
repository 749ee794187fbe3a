#!/usr/bin/env bash
# The runs behind the scores of ppo_continuous_action.py: seeds 1 to 3 on three robots and seed 1 on three others, 1M
# steps, on the CPU, as many at a time as there are cores. Then one seed on seven tasks of dm_control.
# The same command again skips what is finished and resumes what was interrupted; --dry-run only prints the commands.
set -euo pipefail
cd "$(dirname "$0")/.."

DM_CONTROL="dm_control/cartpole-balance-v0 dm_control/cartpole-swingup-v0 dm_control/cheetah-run-v0
  dm_control/walker-walk-v0 dm_control/reacher-easy-v0 dm_control/finger-spin-v0 dm_control/ball_in_cup-catch-v0"

python -m cleanrl_utils.benchmark --num-seeds 3 --workers "${JOBS:-$(nproc)}" "$@" \
  --env-ids HalfCheetah-v4 Walker2d-v4 Hopper-v4 \
  --command "python cleanrl/ppo_continuous_action.py --no-cuda --total-timesteps 1000000 --save-model"
python -m cleanrl_utils.benchmark --num-seeds 1 --workers "${JOBS:-$(nproc)}" "$@" \
  --env-ids InvertedPendulum-v4 Humanoid-v4 Pusher-v5 \
  --command "python cleanrl/ppo_continuous_action.py --no-cuda --total-timesteps 1000000 --save-model"
python -m cleanrl_utils.benchmark --num-seeds 1 --workers "${JOBS:-$(nproc)}" "$@" \
  --env-ids $DM_CONTROL \
  --command "python cleanrl/ppo_continuous_action.py --no-cuda --total-timesteps 1000000 --save-model"

[[ "$*" == *--dry-run* ]] && exit
python -m cleanrl_utils.rlops runs --exp-name ppo_continuous_action \
  --env-ids HalfCheetah-v4 Walker2d-v4 Hopper-v4 InvertedPendulum-v4 Humanoid-v4 Pusher-v5 \
  --append benchmark/results/ppo_continuous_action.csv --output-filename runs/ppo_continuous_action.png
python -m cleanrl_utils.rlops runs --exp-name ppo_continuous_action --env-ids $DM_CONTROL \
  --append benchmark/results/ppo_continuous_action_dm_control.csv \
  --output-filename runs/ppo_continuous_action_dm_control.png
python benchmark/update.py
