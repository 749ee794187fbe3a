#!/usr/bin/env bash
# The runs behind the results of ppo_rnd_envpool.py: Montezuma's Revenge on one GPU, seeds 1 and 2, stopped after some
# minutes, and ppo_atari_envpool.py beside them at the same number of environments, for as long. The schedule is that of
# the defaults, 2,000,000,000 steps, of which these minutes are the beginning: the same command again goes on with them.
# benchmark/ppo_rnd_rooms.py is cleanrl/ppo_rnd_envpool.py and logs charts/rooms, the number of rooms seen, as well.
# --dry-run only prints the commands.
set -euo pipefail
cd "$(dirname "$0")/.."

# An experiment that is stopped by its time limit counts as failed, here it is what was wanted.
task=(--env-ids MontezumaRevenge-v5 --timeout "$((60 * ${MINUTES:-25}))")
python -m cleanrl_utils.benchmark "${task[@]}" --num-seeds 2 --workers 2 "$@" \
  --command "python benchmark/ppo_rnd_rooms.py" || true
python -m cleanrl_utils.benchmark "${task[@]}" --num-seeds 1 --workers 1 "$@" \
  --command "python cleanrl/ppo_atari_envpool.py --num-envs 128" || true

[[ "$*" == *--dry-run* ]] && exit
python benchmark/results.py collect benchmark/results/ppo_rnd_envpool.csv runs/MontezumaRevenge-v5__*
python benchmark/update.py
