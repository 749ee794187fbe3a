#!/usr/bin/env bash
# The runs behind the scores of dqn_atari.py: 3 games, 3 seeds, 10M steps on the GPU, `JOBS` at a time. Each has a replay
# buffer of 7.4 GB on the GPU, if that has room for it, and its checkpoint grows to the same size.
set -euo pipefail
cd "$(dirname "$0")/.."

for env_id in BreakoutNoFrameskip-v4 PongNoFrameskip-v4 BeamRiderNoFrameskip-v4; do
  for seed in 1 2 3; do echo "$env_id $seed"; done
done | xargs -P "${JOBS:-3}" -L 1 bash -c 'python cleanrl/dqn_atari.py --env-id "$0" --seed "$1"'

python benchmark/results.py collect benchmark/results/dqn_atari.csv runs/*__dqn_atari__*
python benchmark/results.py table benchmark/results/dqn_atari.csv
python benchmark/results.py plot benchmark/results/dqn_atari.csv docs/assets/dqn_atari.png
