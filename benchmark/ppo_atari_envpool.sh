#!/usr/bin/env bash
# The runs behind the results of ppo_atari_envpool.py: trainings side by side on one GPU, stopped after 13 and 9 minutes.
# The result file in git came from one H200 with 16 vCPUs and PyTorch 2.11: Pong-v5, --bf16 and one run of Breakout-v5 at
# commit 4b674c2, four seeds of Breakout-v5 at commit c83ebf1.
set -uo pipefail
cd "$(dirname "$0")/.."

script=cleanrl/ppo_atari_envpool.py
timeout 13m python $script --env-id Pong-v5 --clip-coef 0.2 --num-envs 16 --num-minibatches 8 --num-steps 128 \
  --update-epochs 3 &
timeout 13m python $script --env-id Breakout-v5 --bf16 --exp-name ppo_atari_envpool_bf16 &
wait
for seed in 1 2 3 4; do timeout 9m python $script --env-id Breakout-v5 --seed $seed & done
wait

python benchmark/results.py collect benchmark/results/ppo_atari_envpool.csv runs/*-v5__ppo_atari_envpool*
python benchmark/results.py table benchmark/results/ppo_atari_envpool.csv
python benchmark/results.py plot benchmark/results/ppo_atari_envpool.csv docs/assets/ppo_atari_envpool.png
