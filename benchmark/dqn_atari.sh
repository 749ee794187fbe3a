#!/usr/bin/env bash
# The runs behind the scores of dqn_atari.py: 3 games, seeds 1 and 2, 10M steps on the GPU, `JOBS` at a time. Each has
# a replay buffer of 7.4 GB on the GPU, if that has room for it, and its checkpoint grows to the same size.
# The same command again skips what is finished and resumes what was interrupted; --dry-run only prints the commands.
set -euo pipefail
cd "$(dirname "$0")/.."

python -m cleanrl_utils.benchmark --num-seeds 2 --workers "${JOBS:-3}" "$@" \
  --env-ids PongNoFrameskip-v4 BreakoutNoFrameskip-v4 BeamRiderNoFrameskip-v4 \
  --command "python cleanrl/dqn_atari.py"

[[ "$*" == *--dry-run* ]] && exit
python -m cleanrl_utils.rlops runs --exp-name dqn_atari \
  --append benchmark/results/dqn_atari.csv --output-filename runs/dqn_atari.png
python benchmark/update.py
