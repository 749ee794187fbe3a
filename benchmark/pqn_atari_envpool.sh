#!/usr/bin/env bash
# The runs behind the results of pqn_atari_envpool.py and pqn_atari_envpool_lstm.py: Breakout-v5 and Pong-v5 beside
# ppo_atari_envpool.py, all with default settings and side by side on one GPU, stopped after the same time.
set -uo pipefail
cd "$(dirname "$0")/.."

for game in Breakout-v5 Pong-v5; do
  for algorithm in pqn_atari_envpool pqn_atari_envpool_lstm ppo_atari_envpool; do
    timeout "${MINUTES:-13}m" python "cleanrl/$algorithm.py" --env-id "$game" --exp-name "${algorithm}_timed" &
  done
  wait
done

python benchmark/results.py collect benchmark/results/pqn_atari_envpool.csv runs/*-v5__*_timed__*
python benchmark/results.py table benchmark/results/pqn_atari_envpool.csv
python benchmark/results.py plot benchmark/results/pqn_atari_envpool.csv docs/assets/pqn_atari_envpool.png
