#!/usr/bin/env bash
# The runs behind the results of ppo_rnd_envpool.py: Montezuma's Revenge on one GPU, seeds side by side, stopped after
# some minutes, and ppo_atari_envpool.py beside them at the same number of environments. The schedule is that of the
# defaults, 2,000,000,000 steps, of which these minutes are the beginning. charts/rooms is the number of rooms seen.
set -uo pipefail
cd "$(dirname "$0")/.."

for seed in 1 2; do
  timeout "${MINUTES:-25}m" python benchmark/ppo_rnd_rooms.py --env-id MontezumaRevenge-v5 --seed $seed &
done
timeout "${MINUTES:-25}m" python cleanrl/ppo_atari_envpool.py --env-id MontezumaRevenge-v5 --num-envs 128 &
wait

python benchmark/results.py collect benchmark/results/ppo_rnd_envpool.csv runs/MontezumaRevenge-v5__*
python benchmark/results.py table benchmark/results/ppo_rnd_envpool.csv
python benchmark/results.py plot benchmark/results/ppo_rnd_envpool.csv docs/assets/ppo_rnd_envpool.png
