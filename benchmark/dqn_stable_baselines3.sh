#!/usr/bin/env bash
# Does another implementation of DQN drop from 500 on CartPole-v1 as dqn.py does? Stable-Baselines3's, with the
# hyper-parameters of dqn.py: seeds 1 to 10, 500,000 steps on the CPU, `JOBS` at a time. It needs the extra `bench`.
# The same command again skips what is finished; --dry-run only prints the commands.
set -euo pipefail
cd "$(dirname "$0")/.."

python -m cleanrl_utils.benchmark --num-seeds 10 --workers "${JOBS:-2}" "$@" \
  --env-ids CartPole-v1 \
  --command "python benchmark/dqn_stable_baselines3.py"

[[ "$*" == *--dry-run* ]] && exit
python -m cleanrl_utils.rlops runs --exp-name dqn_stable_baselines3 \
  --append benchmark/results/dqn_stable_baselines3.csv --output-filename runs/dqn_stable_baselines3.png
python benchmark/update.py
