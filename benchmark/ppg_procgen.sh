#!/usr/bin/env bash
# The runs behind the scores of ppg_procgen.py: 3 games, 3 seeds, 25,000,000 steps on a GPU, `JOBS` at a time; each of
# them takes 6.4 GB for its auxiliary buffer. The runs of ppo_procgen.sh are to compare with.
# The same command again skips what is finished and resumes what was interrupted.
set -euo pipefail
cd "$(dirname "$0")/.."

python -m cleanrl_utils.benchmark --num-seeds 3 --workers "${JOBS:-1}" \
  --env-ids starpilot bossfight bigfish \
  --command "python cleanrl/ppg_procgen.py"

python -m cleanrl_utils.rlops runs --exp-name ppg_procgen --append benchmark/results/ppg_procgen.csv --output-filename runs/ppg_procgen.png
python benchmark/results.py docs
