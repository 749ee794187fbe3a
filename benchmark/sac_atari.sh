#!/usr/bin/env bash
# The runs behind the scores of sac_atari.py: 3 games, seeds 1 and 2, 5M steps on the GPU, `JOBS` at a time.
# The same command again skips what is finished and resumes what was interrupted; --dry-run only prints the commands.
set -euo pipefail
cd "$(dirname "$0")/.."

python -m cleanrl_utils.benchmark --num-seeds 2 --workers "${JOBS:-3}" "$@" \
  --env-ids PongNoFrameskip-v4 BreakoutNoFrameskip-v4 BeamRiderNoFrameskip-v4 \
  --command "python cleanrl/sac_atari.py"

[[ "$*" == *--dry-run* ]] && exit
python -m cleanrl_utils.rlops runs --exp-name sac_atari \
  --append benchmark/results/sac_atari.csv --output-filename runs/sac_atari.png
python benchmark/update.py
