#!/usr/bin/env bash
# The runs behind the scores of ppo_atari_envpool_xla_jax_scan.py: 10M steps on the GPU, `JOBS` at a time: seed 1 on 2
# games with 16 environments (half an hour on an H200), then 3 games, seeds 1 and 2, with the 8 of the published runs.
# The same command again skips what is finished and resumes what was interrupted; --dry-run only prints the commands.
set -euo pipefail
cd "$(dirname "$0")/.."

python -m cleanrl_utils.benchmark --num-seeds 1 --workers "${JOBS:-2}" "$@" \
  --env-ids Pong-v5 Breakout-v5 \
  --command "python cleanrl/ppo_atari_envpool_xla_jax_scan.py --num-envs 16 --num-minibatches 8"
python -m cleanrl_utils.benchmark --num-seeds 2 --workers "${JOBS:-2}" "$@" \
  --env-ids Pong-v5 Breakout-v5 BeamRider-v5 \
  --command "python cleanrl/ppo_atari_envpool_xla_jax_scan.py"

[[ "$*" == *--dry-run* ]] && exit
python -m cleanrl_utils.rlops runs --exp-name ppo_atari_envpool_xla_jax_scan \
  --append benchmark/results/ppo_atari_envpool_xla_jax_scan.csv \
  --output-filename runs/ppo_atari_envpool_xla_jax_scan.png
python benchmark/update.py
