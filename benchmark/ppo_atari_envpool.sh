#!/usr/bin/env bash
# The runs behind the results of ppo_atari_envpool.py: three trainings side by side on one GPU, stopped after 13 minutes.
# The result file in git came from one H200 with 16 vCPUs and PyTorch 2.11, at commit 4b674c2.
set -uo pipefail
cd "$(dirname "$0")/.."
minutes=${1:-13}

script=cleanrl/ppo_atari_envpool.py
timeout "${minutes}m" python $script --env-id Pong-v5 --clip-coef 0.2 --num-envs 16 --num-minibatches 8 --num-steps 128 \
  --update-epochs 3 &
timeout "${minutes}m" python $script --env-id Breakout-v5 &
timeout "${minutes}m" python $script --env-id Breakout-v5 --bf16 --exp-name ppo_atari_envpool_bf16 &
wait

python benchmark/results.py collect benchmark/results/ppo_atari_envpool.csv runs/*-v5__ppo_atari_envpool*
python benchmark/results.py table benchmark/results/ppo_atari_envpool.csv
python benchmark/results.py plot benchmark/results/ppo_atari_envpool.csv docs/assets/ppo_atari_envpool.png
