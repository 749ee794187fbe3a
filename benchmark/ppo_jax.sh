#!/usr/bin/env bash
# The runs behind the scores of ppo_jax.py: 3 environments, 5 seeds in one program, 500,000 steps on the CPU.
set -euo pipefail
cd "$(dirname "$0")/.."

for env_id in CartPole-v1 Acrobot-v1 MountainCar-v0; do
  python cleanrl/ppo_jax.py --no-cuda --env-id "$env_id" --num-seeds 5
done

python -m cleanrl_utils.rlops runs --exp-name ppo_jax --append benchmark/results/ppo_jax.csv --output-filename runs/ppo_jax.png
python benchmark/results.py docs
