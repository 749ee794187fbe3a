#!/usr/bin/env bash
# The runs behind the scores of ppo_continuous_action.py and rpo_continuous_action.py: 15 trainings on the CPU, as many at
# a time as there are cores. The result files in git came from a machine with two cores.
# The same command again skips what is finished and resumes what was interrupted.
set -euo pipefail
cd "$(dirname "$0")/.."

for name in ppo_continuous_action rpo_continuous_action; do
  python -m cleanrl_utils.benchmark --num-seeds "$([ $name = ppo_continuous_action ] && echo 3 || echo 2)" \
    --workers "${JOBS:-$(nproc)}" --env-ids HalfCheetah-v4 Walker2d-v4 Hopper-v4 \
    --command "python cleanrl/$name.py --no-cuda --total-timesteps 1000000 --save-model"
  python -m cleanrl_utils.rlops runs --exp-name $name --append benchmark/results/$name.csv --output-filename runs/$name.png
done
python benchmark/results.py docs
