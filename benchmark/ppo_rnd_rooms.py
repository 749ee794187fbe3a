"""Train ppo_rnd_envpool.py on Montezuma's Revenge and log how many of the rooms it has seen, as `charts/rooms`.

python benchmark/ppo_rnd_rooms.py --num-envs 64 --total-timesteps 10000000    # the flags are those of the script

The script stays as it is, and is replayed where it is proven: only EnvPool is watched, which returns the memory of the
game. Its byte 3 is the number of the room. What the random actions before the training and an evaluation see does not
count, and a resumed run counts anew.
"""

import runpy
import sys
from pathlib import Path
from typing import Any

from envpool.atari import AtariGymnasiumEnvPool
from torch.utils.tensorboard import SummaryWriter

SCRIPT = Path(__file__).resolve().parents[1] / "cleanrl" / "ppo_rnd_envpool.py"
ROOM = 3  # its place in the memory of the game

rooms: set[int] = set()
receive, add_scalar = AtariGymnasiumEnvPool.recv, SummaryWriter.add_scalar


def receive_and_note(pool: Any, *args: Any, **settings: Any) -> Any:
    outcome = receive(pool, *args, **settings)
    rooms.update(outcome[-1]["ram"][:, ROOM].tolist())
    return outcome


def step_unnoted(pool: Any, actions: Any) -> Any:
    """Random actions and evaluations are played by `step`, the training by `send` and `recv`."""
    pool.send(actions)
    return receive(pool, reset=False, return_info=True)


def add_scalar_and_rooms(writer: SummaryWriter, tag: str, value: Any, step: int, **settings: Any) -> None:
    add_scalar(writer, tag, value, step, **settings)
    if tag == "charts/avg_episodic_return":  # once in an iteration
        add_scalar(writer, "charts/rooms", len(rooms), step)


if __name__ == "__main__":
    AtariGymnasiumEnvPool.recv = receive_and_note
    AtariGymnasiumEnvPool.step = step_unnoted
    SummaryWriter.add_scalar = add_scalar_and_rooms
    sys.argv[0] = str(SCRIPT)
    runpy.run_path(str(SCRIPT), run_name="__main__")
