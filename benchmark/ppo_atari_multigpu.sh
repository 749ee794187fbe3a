#!/usr/bin/env bash
# The runs behind the scores of ppo_atari_multigpu.py: 3 games, seeds 1 and 2, 10M steps in two processes each, on as
# many GPUs as there are, one run at a time.
# The same command again skips what is finished and resumes what was interrupted; --dry-run only prints the commands.
set -euo pipefail
cd "$(dirname "$0")/.."

python -m cleanrl_utils.benchmark --num-seeds 2 --workers "${JOBS:-1}" "$@" \
  --env-ids PongNoFrameskip-v4 BreakoutNoFrameskip-v4 BeamRiderNoFrameskip-v4 \
  --command "torchrun --standalone --nnodes=1 --nproc_per_node=2 cleanrl/ppo_atari_multigpu.py"

[[ "$*" == *--dry-run* ]] && exit
python -m cleanrl_utils.rlops runs --exp-name ppo_atari_multigpu \
  --append benchmark/results/ppo_atari_multigpu.csv --output-filename runs/ppo_atari_multigpu.png
python benchmark/update.py
