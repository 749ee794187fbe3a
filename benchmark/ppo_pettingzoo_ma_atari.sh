#!/usr/bin/env bash
# The runs behind the results of ppo_pettingzoo_ma_atari.py: 3 games in self-play, seed 1, 20M steps on one GPU,
# `JOBS` at a time. Each run ends with ten games against an opponent that acts at random; the last command plays a
# hundred of them.
# The same command again skips what is finished and resumes what was interrupted; --dry-run only prints the commands.
set -euo pipefail
cd "$(dirname "$0")/.."

python -m cleanrl_utils.benchmark --num-seeds 1 --workers "${JOBS:-3}" "$@" \
  --env-ids pong_v3 surround_v2 tennis_v3 \
  --command "python cleanrl/ppo_pettingzoo_ma_atari.py --save-model"

[[ "$*" == *--dry-run* ]] && exit
for run in runs/*__ppo_pettingzoo_ma_atari__*; do
  python -m cleanrl_utils.evaluate "$run" --episodes 100
done
