#!/usr/bin/env bash
# The runs behind the scores of ppo.py in README.md and docs/rl-algorithms/ppo.md, two at a time.
set -euo pipefail
cd "$(dirname "$0")/.."

for env_id in CartPole-v1 Acrobot-v1 MountainCar-v0; do
  for seed in 1 2 3; do echo "$env_id $seed"; done
done | xargs -P 2 -L 1 bash -c 'python cleanrl/ppo.py --no-cuda --env-id "$0" --seed "$1" --save-model'

python benchmark/results.py collect benchmark/results/ppo.csv runs/*__ppo__[123]__*
python benchmark/results.py table benchmark/results/ppo.csv
python benchmark/results.py plot benchmark/results/ppo.csv docs/assets/ppo.png
