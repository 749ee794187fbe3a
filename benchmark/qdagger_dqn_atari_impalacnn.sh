#!/usr/bin/env bash
# The runs behind the scores of qdagger_dqn_atari_impalacnn.py: 3 games, seeds 1 and 2, 10M steps on the GPU, `JOBS`
# at a time. Each game has one teacher, which dqn_atari.py trains first. A student has replay buffers of 11.1 GB, its
# own and its teacher's, on the GPU if that has room for them, and its checkpoint grows to the same size.
# The same command again skips what is finished and resumes what was interrupted; --dry-run only prints the commands.
set -euo pipefail
cd "$(dirname "$0")/.."

games=(PongNoFrameskip-v4 BreakoutNoFrameskip-v4 BeamRiderNoFrameskip-v4)
python -m cleanrl_utils.benchmark --num-seeds 1 --workers "${JOBS:-3}" "$@" \
  --env-ids "${games[@]}" \
  --command "python cleanrl/dqn_atari.py --exp-name teacher --save-model"

for game in "${games[@]}"; do
  # The file of the latest run, or, as long as there is none (--dry-run), what it will be called.
  models=(runs/"$game"__teacher__1__*/teacher.safetensors)
  python -m cleanrl_utils.benchmark --num-seeds 2 --workers "${JOBS:-3}" "$@" \
    --env-ids "$game" \
    --command "python cleanrl/qdagger_dqn_atari_impalacnn.py --teacher-model-path ${models[-1]}"
done

[[ "$*" == *--dry-run* ]] && exit
python -m cleanrl_utils.rlops runs --exp-name qdagger_dqn_atari_impalacnn \
  --append benchmark/results/qdagger_dqn_atari_impalacnn.csv --output-filename runs/qdagger_dqn_atari_impalacnn.png
python benchmark/update.py
