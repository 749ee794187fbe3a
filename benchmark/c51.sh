#!/usr/bin/env bash
# The runs behind the scores of c51.py: 3 environments, 3 seeds, 500,000 steps on the CPU, `JOBS` at a time.
set -euo pipefail
cd "$(dirname "$0")/.."

for env_id in CartPole-v1 Acrobot-v1 MountainCar-v0; do
  for seed in 1 2 3; do echo "$env_id $seed"; done
done | xargs -P "${JOBS:-2}" -L 1 bash -c 'python cleanrl/c51.py --no-cuda --env-id "$0" --seed "$1"'

python benchmark/results.py collect benchmark/results/c51.csv runs/*__c51__*
python benchmark/results.py table benchmark/results/c51.csv
