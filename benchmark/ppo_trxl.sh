#!/usr/bin/env bash
# The runs behind the results of ppo_trxl.py, and of an LSTM on the same tasks: on the CPU, `JOBS` at a time, with transformers
# that are small enough for one core. The same command again skips what is finished; --dry-run only prints the commands.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD/tests/modules" # where the Proof-of-Memory is

# The Proof-of-Memory, 3 seeds: 8 steps of memory, an LSTM, and a memory of one step, too short for the task
flags="--no-cuda --total-timesteps 20480 --num-envs 16 --num-steps 32 --num-minibatches 4 --update-epochs 4 --max-grad-norm 0.5"
task="--num-seeds 3 --workers ${JOBS:-2} --env-ids proof_of_memory:ProofOfMemory-v0"
python -m cleanrl_utils.benchmark $task "$@" \
  --command "python cleanrl/ppo_trxl.py $flags --init-lr 1e-3 --trxl-dim 32 --trxl-num-layers 2 --trxl-memory-length 8"
python -m cleanrl_utils.benchmark $task "$@" \
  --command "python benchmark/ppo_lstm_memory.py $flags --learning-rate 1e-3 --no-anneal-lr --no-norm-adv --ent-coef 1e-4 --gamma 0.995 --accelerate on"
python -m cleanrl_utils.benchmark $task "$@" \
  --command "python cleanrl/ppo_trxl.py --exp-name ppo_trxl_too_short $flags --init-lr 1e-3 --trxl-dim 32 --trxl-num-layers 1 --trxl-memory-length 1"

# MiniGrid's smallest memory task: 3 seeds, and 2 of the LSTM
flags="--no-cuda --total-timesteps 300000 --num-envs 16 --num-steps 128 --num-minibatches 4 --norm-adv"
task="--workers ${JOBS:-2} --env-ids MiniGrid-MemoryS7-v0"
python -m cleanrl_utils.benchmark --num-seeds 3 $task "$@" \
  --command "python cleanrl/ppo_trxl.py $flags --init-lr 5e-4 --init-ent-coef 0.01 --trxl-dim 64 --trxl-num-layers 2 --trxl-memory-length 32"
python -m cleanrl_utils.benchmark --num-seeds 2 $task "$@" \
  --command "python benchmark/ppo_lstm_memory.py $flags --learning-rate 5e-4 --no-anneal-lr --ent-coef 0.01 --gamma 0.995 --update-epochs 3 --max-grad-norm 0.25 --accelerate on"

[[ "$*" == *--dry-run* ]] && exit
python -m cleanrl_utils.rlops runs --exp-name ppo_trxl ppo_lstm_memory ppo_trxl_too_short \
  --append benchmark/results/ppo_trxl.csv --output-filename runs/ppo_trxl.png
python benchmark/update.py
