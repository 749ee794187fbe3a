"""Steps per second of our files against their peers, side by side.

Usage:
    pip install -e ".[bench]"
    python benchmark/speed.py [--task cartpole] [--rounds 5] [--steps 60000] [--core 1] [--csv-file speed.csv]
    python benchmark/speed.py --task sac --cuda --core None     # all train on the GPU

Every contestant trains on the task with the same hyper-parameters, logging to TensorBoard, in a process of its own
pinned to one core. The tasks: PPO on cartpole (CartPole-v1, 4 environments) and on halfcheetah (HalfCheetah-v4, one
environment, observations and rewards normalized); dqn (CartPole-v1); ddpg, td3 and sac (HalfCheetah-v4, one update a
step). The contestants take turns of a second: all but one are stopped (SIGSTOP), so that a busy minute of the machine
hits them alike. All go on until the slowest has trained `--steps` steps: nobody has the machine for itself at the end.
Speed is read from the times of each contestant's own TensorBoard events, its own turns counted alone, from `--warm-up`
steps on (start-up and compilation are over, learning has begun). Our files run with their defaults, with `--accelerate
off` (line by line, as written) and with `--compile`; their twins in JAX run beside them. Reported: the median over
rounds, and its ratio to Stable-Baselines3's.
"""

import csv
import importlib.metadata
import importlib.util
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator, ScalarEvent

from cleanrl_utils import command_line, progress
from cleanrl_utils.git import git
from cleanrl_utils.provenance import hardware

ROOT = Path(__file__).resolve().parents[1]
TURN = 1.0  # seconds
PATIENCE = 120.0  # seconds of its own turns after which a contestant should have logged something
BEYOND = 100  # trainings are told to last so many times the steps that count, as the fastest must not end first

PEER = """
import sys, torch
torch.set_num_threads(1)
from {module} import DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize
extra, steps = {extra}, int(sys.argv[2])
attributes = {{}}
{task}
model = algorithm("MlpPolicy", envs, gamma=0.99, seed=1, **settings, device={device!r}, tensorboard_log=sys.argv[1])
vars(model).update(attributes)
model.learn(steps, log_interval=1)
"""
# How a peer is told to do what our file does by default.
PPO = "settings = dict(gae_lambda=0.95, clip_range=0.2, vf_coef=0.5, max_grad_norm=0.5, **extra)\nalgorithm = PPO"
# Learning starts soon, so that there is something to measure; ours are given the same.
LEARNING_STARTS = 1000
OFF_POLICY = (
    f"settings = dict(learning_starts={LEARNING_STARTS}, train_freq=1, gradient_steps=1, buffer_size=1_000_000)"
)
CHEETAH = 'envs = make_vec_env("HalfCheetah-v4", 1, seed=1)\nsettings.update(batch_size=256, tau=0.005)'
TASKS = {
    "cartpole": f"""
{PPO}
envs = make_vec_env("CartPole-v1", 4, seed=1)
settings.update(n_steps=128, batch_size=128, n_epochs=4, learning_rate=lambda left: 2.5e-4 * left, ent_coef=0.01)
""",
    "halfcheetah": f"""
{PPO}
envs = VecNormalize(make_vec_env("HalfCheetah-v4", 1, seed=1))
settings.update(n_steps=2048, batch_size=64, n_epochs=10, learning_rate=lambda left: 3e-4 * left, ent_coef=0.0)
""",
    "dqn": f"""
{OFF_POLICY}
algorithm = DQN
envs = make_vec_env("CartPole-v1", 1, seed=1)
settings.update(buffer_size=10_000, batch_size=128, tau=1.0, train_freq=10, target_update_interval=500)
settings.update(learning_rate=2.5e-4, policy_kwargs=dict(net_arch=[120, 84]))
settings.update(exploration_fraction=0.5 / {BEYOND}, exploration_initial_eps=1.0, exploration_final_eps=0.05)
""",
    "ddpg": f"""
{OFF_POLICY}
algorithm = DDPG
{CHEETAH}
settings.update(learning_rate=3e-4, policy_kwargs=dict(net_arch=[256, 256]))
attributes.update(policy_delay=2)  # no argument of theirs: their DDPG would update the policy in every step
""",
    "td3": f"""
{OFF_POLICY}
algorithm = TD3
{CHEETAH}
settings.update(learning_rate=3e-4, policy_delay=2, policy_kwargs=dict(net_arch=[256, 256]))
""",
    "sac": f"""
{OFF_POLICY}
algorithm = SAC
{CHEETAH}
settings.update(learning_rate=3e-4, policy_kwargs=dict(net_arch=[256, 256]))
""",
}
TITLES = {"cartpole": "PPO, CartPole-v1, 4 environments", "halfcheetah": "PPO, HalfCheetah-v4, 1 environment"}
TITLES |= {"dqn": "DQN, CartPole-v1"} | {name: f"{name.upper()}, HalfCheetah-v4" for name in ("ddpg", "td3", "sac")}
SCRIPTS = {"cartpole": "ppo.py", "halfcheetah": "ppo_continuous_action.py", "dqn": "dqn.py"}
SCRIPTS |= {name: f"{name}_continuous_action.py" for name in ("ddpg", "td3", "sac")}
# SBX does not offer the clipping of the value loss, a saving of one maximum per minibatch.
PEERS = {"stable-baselines3": ("stable_baselines3", {"clip_range_vf": 0.2}), "sbx": ("sbx", {})}
PACKAGES = {"stable-baselines3": "stable-baselines3", "sbx": "sbx-rl"}


def version(name: str) -> str:
    """Of a contestant: that of its package, or our commit."""
    if name in PACKAGES:
        return importlib.metadata.version(PACKAGES[name])
    return git("rev-parse", "--short", "HEAD", cwd=ROOT)


def contestants(task: str) -> list[str]:
    script = SCRIPTS[task]
    twins = [path.name for path in (ROOT / "cleanrl").glob(script.replace(".py", "_jax.py"))]
    return [*PEERS, script, f"{script} --accelerate off", f"{script} --compile", *twins]


def train(name: str, task: str, steps: int, folder: Path, cuda: bool) -> list[str]:
    """The command of a contestant."""
    if name in PEERS:
        module, extra = PEERS[name]
        return [
            sys.executable,
            "-c",
            PEER.format(module=module, task=TASKS[task], extra=extra, device="cuda" if cuda else "cpu"),
            str(folder),
            str(BEYOND * steps),
        ]
    script, *flags = name.split()
    if task not in ("cartpole", "halfcheetah"):
        flags += ["--learning-starts", str(LEARNING_STARTS)]
    if task == "dqn":
        flags += ["--exploration-fraction", str(0.5 / BEYOND)]
    flags += ["--total-timesteps", str(BEYOND * steps)]
    return [sys.executable, str(ROOT / "cleanrl" / script), "--cuda" if cuda else "--no-cuda", *flags]


def heed_interrupts() -> None:
    """In the new process: Ctrl+C works even if this program runs in the background, where it is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Contestant:
    """A training that runs only in its turns."""

    def __init__(self, name: str, task: str, steps: int, core: int | None, folder: Path, cuda: bool = False) -> None:
        folder.mkdir()
        self.name, self.folder, self.turns = name, folder, []
        pin = ["taskset", "-c", str(core)] if core is not None else []
        with open(folder / "output.txt", "w") as output:
            self.process = subprocess.Popen(
                pin + train(name, task, steps, folder, cuda),
                cwd=folder,
                env=os.environ | {"OMP_NUM_THREADS": "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},  # room for all
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a group of its own, to be stopped with all its processes
                preexec_fn=heed_interrupts,
            )
        self.signal(signal.SIGSTOP)

    def signal(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    def take_turn(self, seconds: float) -> None:
        """Run for so long, or to the end."""
        start = time.time()
        self.signal(signal.SIGCONT)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGSTOP)
        self.turns.append((start, time.time()))
        if self.process.returncode:
            sys.exit(f"{self.name} failed:\n{(self.folder / 'output.txt').read_text()[-3000:]}")
        if self.step() == 0 and sum(end - start for start, end in self.turns) > PATIENCE:
            sys.exit(f"{self.name} has logged nothing in {PATIENCE:.0f} s of its own")

    def active(self, moment: float) -> float:
        """The seconds that it has run until then."""
        return sum(min(end, moment) - start for start, end in self.turns if start < moment)

    def logged(self) -> list[ScalarEvent]:
        """Its own measurements of its speed; here only their steps and times count."""
        path = next(self.folder.rglob("events.out.tfevents.*"), None)
        if path is None:
            return []
        events = EventAccumulator(str(path.parent), size_guidance={"scalars": 0}).Reload()
        tags = [tag for tag in events.Tags()["scalars"] if tag in ("charts/SPS", "time/fps")]
        return [x for tag in tags for x in events.Scalars(tag)]

    def step(self) -> int:
        """How far it is. Our files note that every second, while their curves reach the disk minutes later."""
        noted = [progress.read(path.parent).get("step", 0) for path in self.folder.rglob("progress.json")]
        return noted[0] if noted else max((x.step for x in self.logged()), default=0)

    def end(self) -> None:
        """Ask it to stop, for which our files write their curves; then kill what is left."""
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGINT)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                pass
        try:
            self.signal(signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def steps_per_second(self, warm_up: int) -> float:
        in_time = [x for x in self.logged() if x.step >= warm_up and x.wall_time <= self.turns[-1][1]]
        points = [(x.step, self.active(x.wall_time)) for x in in_time]
        if len(points) < 2:
            times = "once" if points else "nothing"
            sys.exit(f"{self.name} has logged {times} after --warm-up {warm_up}: raise --steps")
        (first_step, first_time), (last_step, last_time) = points[0], points[-1]
        return (last_step - first_step) / (last_time - first_time)


def race(task: str, steps: int, warm_up: int, core: int | None, cuda: bool = False) -> dict[str, float]:
    """Train all contestants side by side; steps per second after the warm-up."""
    with tempfile.TemporaryDirectory() as folder:
        all_of_them = [Contestant(name, task, steps, core, Path(folder, name), cuda) for name in contestants(task)]
        try:
            while any(x.process.returncode is None and x.step() < steps for x in all_of_them):
                for contestant in all_of_them:
                    if contestant.process.returncode is None:
                        contestant.take_turn(TURN)
        finally:
            for contestant in all_of_them:
                contestant.end()
        return {x.name: x.steps_per_second(warm_up) for x in all_of_them}


def main(
    task: Literal["cartpole", "halfcheetah", "dqn", "ddpg", "td3", "sac"] = "cartpole",
    rounds: int = 5,
    steps: int = 60_000,
    warm_up: int = 20_000,
    core: int | None = 1,
    cuda: bool = False,
    csv_file: Path | None = None,
) -> None:
    """Compare the speed of training.

    Args:
        task: what all train on
        rounds: how often each contestant trains
        steps: environment steps of the slowest training; the others go on as long
        warm_up: steps at the start that do not count
        core: the core all are pinned to (Linux); None: not pinned
        cuda: train on the GPU
        csv_file: where to write every single measurement
    """
    if missing := [module for module, _ in PEERS.values() if not importlib.util.find_spec(module)]:
        sys.exit(f'{" and ".join(missing)} not installed: pip install -e ".[bench]"')
    if rounds < 1 or steps <= warm_up:
        sys.exit(f"--rounds must be at least 1 and --steps {steps} more than --warm-up {warm_up}")
    if cuda:
        import torch  # from here on, `hardware` knows the GPU

        if not torch.cuda.is_available():
            sys.exit("there is no GPU: leave out --cuda")
    core = core if platform.system() == "Linux" else None
    speeds: dict[str, list[float]] = {name: [] for name in contestants(task)}
    for number in range(1, rounds + 1):
        for name, speed in race(task, steps, warm_up, core, cuda).items():
            speeds[name].append(speed)
            print(f"round {number}  {name:<35} {speed:8.0f} steps/s", flush=True)
    base = statistics.median(speeds["stable-baselines3"])
    where = "on the GPU" if cuda else "on the CPU" if core is None else "one core"
    print(f"\n| {TITLES[task]}, {where} | steps/s (median of {rounds}) | x stable-baselines3 |")
    print("|---|---|---|")
    for name, values in speeds.items():
        print(f"| {name} | {statistics.median(values):.0f} | {statistics.median(values) / base:.2f} |")
    if csv_file:
        csv_file.parent.mkdir(parents=True, exist_ok=True)
        with open(csv_file, "w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["contestant", "version", "hardware", "round", "steps_per_second"])
            for name, values in speeds.items():
                facts = [name, version(name), hardware()]
                rows.writerows([*facts, number, round(speed, 1)] for number, speed in enumerate(values, 1))


if __name__ == "__main__":
    command_line.run(main, prog="python benchmark/speed.py")
