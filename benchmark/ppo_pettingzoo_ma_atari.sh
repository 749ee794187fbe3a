#!/usr/bin/env bash
# The runs behind the results of ppo_pettingzoo_ma_atari.py: three games in self-play, side by side on one GPU. Each run
# ends with ten games against an opponent that acts at random; the last command plays a hundred of them.
# STEPS=5000000 stops earlier. A run that was interrupted goes on with --resume RUN_DIR.
set -uo pipefail
cd "$(dirname "$0")/.."

for game in pong_v3 surround_v2 tennis_v3; do
  python cleanrl/ppo_pettingzoo_ma_atari.py --env-id "$game" --total-timesteps "${STEPS:-20000000}" --save-model &
done
wait

for run in runs/*__ppo_pettingzoo_ma_atari__*; do
  python -m cleanrl_utils.evaluate "$run" --episodes 100
done
