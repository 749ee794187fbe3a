"""Save and restore the exact state of environments, so that a resumed run equals one that never stopped.

Pickling an environment is not enough: many pickle as their constructor's arguments and silently start again. Here the
attributes of every layer of wrappers are saved instead: counters, physics, random generators and all. Simulators stay
where they are, as renderers and views of their arrays point to them: only their contents are saved and put back.

Some environments keep state where no snapshot sees it: on their class, in a global variable, in an object that pickles
as its constructor's arguments. So before the first snapshot of a run counts, a copy is restored from it and played
against the original. Environments that fail this trial cannot be saved, and a resumed run says so.
"""

import gc
import io
import math
import os
import pickle
import signal
import sys
import time
import warnings
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import gymnasium as gym
import numpy as np

from cleanrl_utils import backend
from cleanrl_utils.simulators import ATARI, DM_CONTROL, PETTINGZOO, class_names, contents, put_back

# Attributes that say how an environment is built, not where it is.
STRUCTURE = {"env", "envs", "env_fns", "spec", "metadata", "_saved_kwargs", "recorded_frames"}
# Attributes that usually belong to a window; where they hold plain data, they belong to the game.
RENDERING = {"screen", "clock", "surf", "font", "window", "window_surface", "renderer", "viewer", "mujoco_renderer"}
PLAIN_DATA = (int, float, str, np.ndarray, list, tuple, dict, set, deque)


def layers(envs: Any) -> Iterator[Any]:
    """Every object that makes up `envs`: vector wrappers, then the wrappers of each single environment, outside in."""
    yield envs
    for inner in getattr(envs, "envs", None) or [vars(envs).get("env")]:
        if inner is not None:
            yield from layers(inner)


class Freezer(pickle.Pickler):
    """A pickler that leaves simulators where they are: it writes their number, and lists them in `simulators`."""

    SIMULATORS = {"mujoco._structs.MjModel", "mujoco._structs.MjData", DM_CONTROL, ATARI, PETTINGZOO}
    # dm_control's composer compiles a new simulator for each episode: there is nothing to put its contents into.
    REFUSED = {
        "gymnasium.core.Env",
        "gymnasium.vector.vector_env.VectorEnv",
        "dm_control.composer.environment.Environment",
    }

    def __init__(self, file: io.BytesIO):
        super().__init__(file)
        self.simulators: list[Any] = []

    def persistent_id(self, x: Any) -> int | None:
        names = class_names(x)
        if names & self.REFUSED:
            raise pickle.PicklingError(f"{type(x)} inside an attribute may pickle as its constructor's arguments")
        if not names & self.SIMULATORS:
            return None
        for number, simulator in enumerate(self.simulators):
            if simulator is x:
                return number
        self.simulators.append(x)
        return len(self.simulators) - 1


class Thawer(pickle.Unpickler):
    """Reads what a Freezer wrote, with other simulators in the place of those it left out."""

    def __init__(self, file: io.BytesIO, simulators: list[Any]):
        super().__init__(file)
        self.simulators = simulators

    def persistent_load(self, number: int) -> Any:
        return self.simulators[number]


def is_state(name: str, value: Any) -> bool:
    """Whether an attribute says where an environment is."""
    if name in STRUCTURE or isinstance(value, FunctionType):
        return False
    return name not in RENDERING or isinstance(value, PLAIN_DATA)


def freeze(envs: Any) -> tuple[bytes, list[Any]]:
    """The attributes of all layers, pickled, and the simulators among them."""
    states = []
    for layer in layers(envs):
        layer.__reduce_ex__(2)  # raises where the class keeps its state in C++, out of reach: EnvPool
        attributes = sorted(vars(layer).items())  # sorted: simulators are numbered in this order
        states.append({name: value for name, value in attributes if is_state(name, value)})
    buffer = io.BytesIO()
    freezer = Freezer(buffer)
    freezer.dump(states)
    return buffer.getvalue(), freezer.simulators


def capture(envs: Any) -> tuple[bytes, list[bytes]]:
    """The state of `envs`; raises where something cannot be pickled.

    Compressed, as a model of dm_control holds 12 MB of textures.
    """
    attributes, simulators = freeze(envs)
    return attributes, [zlib.compress(pickle.dumps(contents(simulator)), 1) for simulator in simulators]


def take_snapshot(envs: Any) -> tuple[bytes, list[bytes]] | None:
    """The state of `envs`, or None where something that matters cannot be saved."""
    try:
        snapshot = capture(envs)
    except Exception:  # whatever a foreign object raises: it cannot be saved
        return None
    if envs not in tried:
        tried[envs] = can_be_restored(envs)
    return snapshot if tried[envs] else None


def restore_snapshot(envs: Any, snapshot: tuple[bytes, list[bytes]]) -> None:
    """Put `envs`, built as they were when the snapshot was taken, into its state."""
    attributes, saved = snapshot
    _, simulators = freeze(envs)
    for simulator, content in zip(simulators, saved, strict=True):
        put_back(simulator, pickle.loads(zlib.decompress(content)))
    states = Thawer(io.BytesIO(attributes), simulators).load()
    for layer, state in zip(layers(envs), states, strict=True):
        vars(layer).update(state)
        if "recorded_frames" in vars(layer):  # a film goes on without the frames of the episode that was replaced
            layer.recorded_frames = []


# The trial of a snapshot

STEPS = 20  # before a reset, and again after it
PLAYING_LIMIT = 3.0  # seconds, for an environment that is slow
TRIAL_LIMIT = 20  # seconds until a trial is given up
DIFFERENT = 3  # the exit code of a trial that found a difference
# For each environment whose snapshot has been tried: whether a copy can be restored from it.
tried: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def can_be_restored(envs: Any) -> bool:
    """False if a copy of the first environment, restored from a snapshot, goes on otherwise than the original.

    The trial takes place in a fork of this process. So it leaves no trace here: not in the environments, not in what
    they share, and no film. Where it cannot take place, the snapshot is trusted.
    """
    vector_env = next((layer for layer in layers(envs) if "env_fns" in vars(layer)), None)
    if vector_env is None or sys.platform != "linux":  # elsewhere, forking a program with threads is not safe
        return True
    random_states = backend.random_states()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of threads, which the fork does not need
            child = os.fork()
        if child == 0:
            run_trial(vector_env.envs[0], vector_env.env_fns[0], random_states)
        _, status = os.waitpid(child, 0)
    except OSError:  # no memory for a fork, or somebody else has waited for it
        return True
    return os.waitstatus_to_exitcode(status) != DIFFERENT


def run_trial(env: Any, make_env: Callable, random_states: dict) -> None:
    """In the fork: compare, and end it without all that Python does at its end."""
    exit_code = 0
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is meant for the training
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        signal.alarm(TRIAL_LIMIT)
        gc.disable()  # what the training has thrown away is for the training to clean up
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)  # a trial is silent, whatever the environment prints
        os.dup2(nowhere, 2)
        if not copy_goes_on_alike(env, make_env, random_states):
            exit_code = DIFFERENT
    finally:
        os._exit(exit_code)


def copy_goes_on_alike(env: Any, make_env: Callable, random_states: dict) -> bool:
    """Whether a restored copy of `env` answers the same actions as `env` itself does.

    The original plays first. So when the copy's turn comes, state outside of them has moved on, as in a new process.
    """
    stop_filming(env)
    actions = [env.action_space.sample() for _ in range(2 * STEPS)]
    snapshot = capture(env)
    backend.set_random_states(random_states)
    expected = play(env, actions, PLAYING_LIMIT)
    copy = make_env()
    copy.reset(seed=12345)
    try:
        restore_snapshot(copy, snapshot)
    except Exception:  # so would resuming the run
        return False
    backend.set_random_states(random_states)  # those are saved beside the snapshot
    return play(copy, actions[: len(expected)]) == expected


def play(env: Any, actions: list, seconds: float = math.inf) -> list[list]:
    """What an environment answers to each of the actions. Half-way through, it is reset."""
    answers = []
    is_over = False
    deadline = time.monotonic() + seconds
    for number, action in enumerate(actions):
        answer = []
        try:
            if is_over or number == STEPS:
                obs, _ = env.reset()
                answer.append(in_bytes(obs))
            obs, reward, termination, truncation, _ = env.step(action)
            answer.append(in_bytes((obs, reward, termination, truncation)))
            is_over = termination or truncation
        except Exception as error:  # a copy must fail in the same step
            answer.append(str(error))
        answers.append(answer)
        if time.monotonic() > deadline:
            break
    return answers


def in_bytes(x: Any) -> Any:
    """An observation, a reward or several of them, to be compared to the bit."""
    if isinstance(x, dict):
        return {name: in_bytes(value) for name, value in x.items()}
    if isinstance(x, tuple | list):
        return [in_bytes(value) for value in x]
    array = np.asarray(x)
    if array.dtype == object:
        return pickle.dumps(x)
    return str(array.dtype), array.shape, array.tobytes()


def stop_filming(env: Any) -> None:
    """For good, and without writing the film that has begun."""
    for layer in layers(env):
        if "recorded_frames" in vars(layer):
            layer.recorded_frames = []
            layer.recording = False
            layer.episode_trigger = None
            layer.step_trigger = None


# Starting again where nothing can be restored


def reset_with_fresh_seeds(envs: Any, seed: int) -> Any:
    """Start new episodes everywhere, surely drawn from `seed`; returns their first observations.

    `envs.reset(seed=...)` alone does not see to that, as a wrapper may keep the seed to itself: while there are lives
    left, EpisodicLifeEnv plays on without a reset. So the innermost environments are seeded first.
    (EnvPool takes its seed when it is made, and never again.)
    """
    innermost = [layer for layer in layers(envs) if isinstance(layer, gym.Env) and layer.unwrapped is layer]
    for idx, env in enumerate(innermost):
        env.np_random = np.random.default_rng(seed + idx)  # for those that forget `super().reset(seed=seed)`
        env.reset(seed=seed + idx)
    for layer in layers(envs):
        if "recorded_frames" in vars(layer):  # of an episode that does not take place
            layer.recorded_frames = []
            layer.recording = False
    end_games(envs)
    next_obs, _ = envs.reset(seed=seed)
    return next_obs


def end_games(envs: Any) -> None:
    """Make the next reset a real one, lives left or not."""
    for layer in layers(envs):
        if "was_real_done" in vars(layer):  # EpisodicLifeEnv of stable_baselines3
            layer.was_real_done = True
