#!/usr/bin/env bash
# The runs behind the scores of ppo_atari_lstm.py: 3 games, seeds 1 and 2, 10M steps on the GPU, `JOBS` at a time.
# The same command again skips what is finished and resumes what was interrupted; --dry-run only prints the commands.
set -euo pipefail
cd "$(dirname "$0")/.."

python -m cleanrl_utils.benchmark --num-seeds 2 --workers "${JOBS:-2}" "$@" \
  --env-ids PongNoFrameskip-v4 BreakoutNoFrameskip-v4 BeamRiderNoFrameskip-v4 \
  --command "python cleanrl/ppo_atari_lstm.py"

[[ "$*" == *--dry-run* ]] && exit
python -m cleanrl_utils.rlops runs --exp-name ppo_atari_lstm \
  --append benchmark/results/ppo_atari_lstm.csv --output-filename runs/ppo_atari_lstm.png
python benchmark/update.py
