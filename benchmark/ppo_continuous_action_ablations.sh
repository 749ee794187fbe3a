#!/usr/bin/env bash
# Why does ppo_continuous_action.py reach more on Walker2d-v4 than the published CleanRL? Edited copies, made here with
# sed, each undo one difference; 1M steps on the CPU, as many at a time as there are cores:
# - no_bootstrap: the time limit counts as a fall, seeds 1 to 5;
# - wrapper_statistics: observations and rewards are normalized by gymnasium's wrappers, which have statistics of their
#   own in each environment and change them at every step, as in the published file: seeds 1 to 5 with one environment,
#   and 1 to 3 with four, beside the file itself with four;
# - no_bootstrap_wrapper_statistics: both, seeds 1 to 5.
# The same command again skips what is finished and resumes what was interrupted; --dry-run only prints the commands.
set -euo pipefail
cd "$(dirname "$0")/.."

mkdir -p runs
sed 's/as_tensor(terminations, /as_tensor(terminations | truncations, /' \
  cleanrl/ppo_continuous_action.py > runs/ppo_continuous_action_no_bootstrap.py
sed -e 's/^        env = gym.wrappers.RecordEpisodeStatistics(env)$/&\
        env = gym.wrappers.NormalizeObservation(env)\
        env = gym.wrappers.TransformObservation(env, lambda x: x.clip(-10, 10), None)\
        env = gym.wrappers.NormalizeReward(env)\
        env = gym.wrappers.TransformReward(env, lambda x: np.clip(x, -10, 10))/' \
  -e 's/return ((x - self.obs_mean).*/return x/' \
  -e '/torch_rewards = (torch_rewards \/ (agent.return_var/d' \
  cleanrl/ppo_continuous_action.py > runs/ppo_continuous_action_wrapper_statistics.py
sed 's/as_tensor(terminations, /as_tensor(terminations | truncations, /' \
  runs/ppo_continuous_action_wrapper_statistics.py > runs/ppo_continuous_action_no_bootstrap_wrapper_statistics.py

train() {
  python -m cleanrl_utils.benchmark --workers "${JOBS:-$(nproc)}" --env-ids Walker2d-v4 "$@"
}
FLAGS="--no-cuda --accelerate on --checkpoint-frequency 0"
FOUR="--num-envs 4 --num-steps 512"
WRAPPERS=ppo_continuous_action_wrapper_statistics
train "$@" --num-seeds 5 --command "python runs/ppo_continuous_action_no_bootstrap.py $FLAGS"
train "$@" --num-seeds 5 --command "python runs/$WRAPPERS.py $FLAGS"
train "$@" --num-seeds 5 --command "python runs/ppo_continuous_action_no_bootstrap_wrapper_statistics.py $FLAGS"
train "$@" --num-seeds 3 --command "python runs/$WRAPPERS.py $FLAGS $FOUR --exp-name ${WRAPPERS}_4_envs"
train "$@" --num-seeds 3 \
  --command "python cleanrl/ppo_continuous_action.py $FLAGS $FOUR --exp-name ppo_continuous_action_4_envs"

[[ "$*" == *--dry-run* ]] && exit
python -m cleanrl_utils.rlops runs \
  --exp-name ppo_continuous_action_{no_bootstrap,wrapper_statistics,no_bootstrap_wrapper_statistics} \
  ppo_continuous_action_{wrapper_statistics_4_envs,4_envs} \
  --append benchmark/results/ppo_continuous_action_ablations.csv --output-filename runs/ppo_continuous_action_ablations.png
python benchmark/update.py
