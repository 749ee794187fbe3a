"""PPO with an LSTM on the tasks of ppo_trxl.py, to compare the two memories.

Usage: python benchmark/ppo_lstm_memory.py --env-id MiniGrid-MemoryS7-v0 [further flags of ppo_atari_lstm.py]

This is cleanrl/ppo_atari_lstm.py with the environments, the encoder and the observation statistics of ppo_trxl.py in
the place of those for Atari games. Nothing else changes: the LSTM, the loss and the loop are those of the file.
"""

import runpy
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENCODER = """self.network = nn.Sequential(
            layer_init(nn.Linear(envs.single_observation_space.shape[0], 512)),
            nn.ReLU(),
        )
        self.obs_mean = nn.Buffer(torch.zeros(envs.single_observation_space.shape[0]))
        self.obs_var = nn.Buffer(torch.ones(envs.single_observation_space.shape[0]))
"""
FEATURES = """def get_features(self, x):
        x = ((x - self.obs_mean) / (self.obs_var + 1e-8).sqrt()).clamp(-10, 10)
        return self.lstm_x(self.network(x))

"""
STATISTICS = """merge_stats(agent.obs_mean, agent.obs_var, obs.flatten(0, 1).float(), args.batch_size / global_step)

        """
# What is replaced: where it begins, where the rest goes on, and what comes in between.
CHANGES = [
    ("def make_env(", "def make_envs(", "from cleanrl.ppo_trxl import make_env, merge_stats\n\n\n"),
    ("self.network = nn.Sequential(", "        # differs from ppo_atari.py: an LSTM", ENCODER),
    ("def get_features(self, x):", "    def lstm(self, x, lstm_state)", FEATURES),
    ("dtype=torch.uint8, device=device)", "\n    actions = np.zeros", "device=device)"),
    ("# Log: the means", "# Log: the means", STATISTICS),
]


def changed(source: str) -> str:
    for beginning, rest, new in CHANGES:
        assert source.count(beginning) == 1, f"ppo_atari_lstm.py has changed: {beginning}"
        start = source.index(beginning)
        source = source[:start] + new + source[source.index(rest, start) :]
    return source


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "ppo_lstm_memory.py")
        script.write_text(changed((ROOT / "cleanrl" / "ppo_atari_lstm.py").read_text()))
        sys.argv[0] = str(script)
        runpy.run_path(str(script), run_name="__main__")
