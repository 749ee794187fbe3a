#!/usr/bin/env bash
# The runs behind the scores of ddpg_continuous_action.py: 6 tasks, 3 seeds, 1M steps on the CPU, `JOBS` at a time.
set -euo pipefail
cd "$(dirname "$0")/.."

for env_id in HalfCheetah-v4 Walker2d-v4 Hopper-v4 InvertedPendulum-v4 Humanoid-v4 Pusher-v4; do
  for seed in 1 2 3; do echo "$env_id $seed"; done
done | xargs -P "${JOBS:-2}" -L 1 bash -c 'python cleanrl/ddpg_continuous_action.py --no-cuda --env-id "$0" --seed "$1"'

python benchmark/results.py collect benchmark/results/ddpg_continuous_action.csv runs/*__ddpg_continuous_action__*
python benchmark/results.py table benchmark/results/ddpg_continuous_action.csv
