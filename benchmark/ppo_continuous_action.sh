#!/usr/bin/env bash
# The runs behind the scores of ppo_continuous_action.py and rpo_continuous_action.py: 15 trainings on the CPU, as many at
# a time as there are cores. The result files in git came from a machine with 16 cores and PyTorch 2.11.
set -euo pipefail
cd "$(dirname "$0")/.."

for env_id in HalfCheetah-v4 Walker2d-v4 Hopper-v4; do
  for seed in 1 2 3; do echo "ppo_continuous_action $env_id $seed"; done
  for seed in 1 2; do echo "rpo_continuous_action $env_id $seed"; done
done | xargs -P "$(nproc)" -L 1 bash -c \
  'python cleanrl/$0.py --no-cuda --env-id "$1" --seed "$2" --total-timesteps 1000000 --save-model'

for name in ppo_continuous_action rpo_continuous_action; do
  python benchmark/results.py collect benchmark/results/$name.csv runs/*-v4__"${name}"__*
  python benchmark/results.py table benchmark/results/$name.csv
done
python benchmark/results.py plot benchmark/results/ppo_continuous_action.csv docs/assets/ppo_continuous_action.png
