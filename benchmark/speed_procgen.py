"""How long an update of ppo_procgen.py takes on a GPU, and what would make it faster.

python benchmark/speed_procgen.py

An update is one minibatch of 2,048 frames, forward and backward, with network and loss of the file, as written. Each
line changes one or two settings: bfloat16, deterministic algorithms, algorithms of cuDNN chosen by trial
(`cudnn.benchmark`), the order of the dimensions in memory, `torch.compile`.
"""

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from cleanrl import ppo_procgen

NUM_FRAMES = 2048
NUM_ACTIONS = 15


class ChannelsFirstAgent(ppo_procgen.Agent):
    def get_features(self, x):
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.bf16):
            return self.network(x / 255).float()


def milliseconds_per_update(agent_class, bf16: bool, deterministic: bool, benchmark: bool, compiled: bool) -> float:
    torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.benchmark = benchmark
    torch.manual_seed(0)
    args = ppo_procgen.Args()
    spaces = SimpleNamespace(single_action_space=SimpleNamespace(n=NUM_ACTIONS))
    agent = agent_class(spaces).to("cuda")
    agent.bf16 = bf16
    learning_rate = torch.tensor(args.learning_rate, device="cuda")
    optimizer = torch.optim.Adam(agent.parameters(), learning_rate, eps=1e-5, fused=True)
    evaluate_actions = torch.compile(agent.evaluate_actions) if compiled else agent.evaluate_actions
    obs = torch.randint(0, 256, (NUM_FRAMES, 3, 64, 64), dtype=torch.uint8, device="cuda")
    actions = torch.randint(0, NUM_ACTIONS, (NUM_FRAMES,), device="cuda")
    logprobs, advantages, returns, values = torch.randn(4, NUM_FRAMES, device="cuda")
    valid = torch.ones(NUM_FRAMES, dtype=torch.bool, device="cuda")

    def update():
        optimizer.zero_grad()
        outputs = evaluate_actions(obs, actions)
        loss, _ = ppo_procgen.ppo_loss(*outputs, logprobs, advantages, returns, values, valid, args)
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
        optimizer.step()

    for count in (4, 15):  # the first ones only to warm up
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            update()
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - start) / count


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("speed_procgen.py needs a GPU")
    as_written = {"bf16": False, "deterministic": True, "benchmark": False, "compiled": False}
    ours = ppo_procgen.Agent
    for name, agent_class, changes in [
        ("as in the file", ours, {}),
        ("not deterministic", ours, {"deterministic": False}),
        ("not deterministic, cudnn.benchmark", ours, {"deterministic": False, "benchmark": True}),
        ("channels first", ChannelsFirstAgent, {}),
        ("bf16", ours, {"bf16": True}),
        ("bf16, not deterministic, cudnn.benchmark", ours, {"bf16": True, "deterministic": False, "benchmark": True}),
        ("compiled", ours, {"compiled": True}),
        ("compiled, bf16", ours, {"compiled": True, "bf16": True}),
    ]:
        print(f"{name:<45}{milliseconds_per_update(agent_class, **as_written | changes):6.1f} ms", flush=True)


if __name__ == "__main__":
    main()
