#!/usr/bin/env bash
# The runs behind the scores of ppo_procgen.py: 3 games, seeds 1 to 3, 25,000,000 steps on a GPU, `JOBS` at a time.
# The same command again skips what is finished and resumes what was interrupted; --dry-run only prints the commands.
set -euo pipefail
cd "$(dirname "$0")/.."

python -m cleanrl_utils.benchmark --num-seeds 3 --workers "${JOBS:-1}" "$@" \
  --env-ids starpilot bossfight bigfish \
  --command "python cleanrl/ppo_procgen.py"

[[ "$*" == *--dry-run* ]] && exit
python -m cleanrl_utils.rlops runs --exp-name ppo_procgen \
  --append benchmark/results/ppo_procgen.csv --output-filename runs/ppo_procgen.png
python benchmark/update.py
