"""Save and restore the exact state of environments, so that a resumed run equals one that never stopped.

Pickling an environment is not enough: many pickle as their constructor's arguments and silently start again. Here the
attributes of every layer of wrappers are saved instead: counters, physics, random generators and all. Simulators stay
where they are, as renderers and views of their arrays point to them: only their contents are saved and put back.
"""

import io
import math
import pickle
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

# Attributes that say how an environment is built or drawn, not where it is.
STRUCTURE = {"env", "envs", "env_fns", "spec", "metadata", "_saved_kwargs"}
RENDERING = {"screen", "clock", "surf", "font", "window", "window_surface", "renderer", "viewer", "recorded_frames"}
RENDERING |= {"mujoco_renderer"}
# Games that ALE 0.12.1 restores with faults: a wrong reward, a picture that is not drawn anew, another cartridge clock.
FAULTY_GAMES = {"miniature_golf", "tic_tac_toe_3d", "pitfall2"}


def layers(envs: Any) -> Iterator[Any]:
    """Every object that makes up `envs`: vector wrappers, then the wrappers of each single environment, outside in."""
    yield envs
    for inner in getattr(envs, "envs", None) or [vars(envs).get("env")]:
        if inner is not None:
            yield from layers(inner)


def class_names(x: Any) -> set[str]:
    return {f"{cls.__module__}.{cls.__name__}" for cls in type(x).__mro__}


class Freezer(pickle.Pickler):
    """A pickler that leaves simulators where they are: it writes their number, and lists them in `simulators`."""

    SIMULATORS = {"mujoco._structs.MjModel", "mujoco._structs.MjData", "dm_control.mujoco.engine.Physics"}
    SIMULATORS |= {"ale_py._ale_py.ALEInterface"}
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


def freeze(envs: Any) -> tuple[bytes, list[Any]]:
    """The attributes of all layers, pickled, and the simulators among them."""
    states = []
    for layer in layers(envs):
        layer.__reduce_ex__(2)  # raises where the class keeps its state in C++, out of reach: EnvPool
        names = sorted(vars(layer).keys() - STRUCTURE - RENDERING)  # sorted: simulators are numbered in this order
        states.append({name: vars(layer)[name] for name in names if not isinstance(vars(layer)[name], FunctionType)})
    buffer = io.BytesIO()
    freezer = Freezer(buffer)
    freezer.dump(states)
    return buffer.getvalue(), freezer.simulators


def take_snapshot(envs: Any) -> tuple[bytes, list[bytes]] | None:
    """The state of `envs`, or None where something that matters cannot be saved.

    Compressed, as a model of dm_control holds 12 MB of textures.
    """
    try:
        attributes, simulators = freeze(envs)
        return attributes, [zlib.compress(pickle.dumps(contents(simulator)), 1) for simulator in simulators]
    except Exception:  # whatever a foreign object raises: it cannot be saved
        return None


def restore_snapshot(envs: Any, snapshot: tuple[bytes, list[bytes]]) -> None:
    """Put `envs`, built as they were when the snapshot was taken, into its state."""
    attributes, saved = snapshot
    _, simulators = freeze(envs)
    for simulator, content in zip(simulators, saved, strict=True):
        put_back(simulator, pickle.loads(zlib.decompress(content)))
    states = Thawer(io.BytesIO(attributes), simulators).load()
    for layer, state in zip(layers(envs), states, strict=True):
        vars(layer).update(state)


def contents(simulator: Any) -> Any:
    """What holds the state of a simulator: MuJoCo's own structures, or what can be got out of an Atari emulator."""
    names = class_names(simulator)
    if "ale_py._ale_py.ALEInterface" in names:
        return atari_contents(simulator)
    return simulator.data.ptr if "dm_control.mujoco.engine.Physics" in names else simulator


def put_back(simulator: Any, saved: Any) -> None:
    if "ale_py._ale_py.ALEInterface" in class_names(simulator):
        put_back_atari(simulator, *saved)
    else:
        put_back_mujoco(contents(simulator), saved)


def put_back_mujoco(live: Any, saved: Any) -> None:
    """Overwrite a MjModel or MjData in place.

    All of it, not only what `mj_getState` holds: a step leaves derived positions that lag behind the state, setting the
    state would derive others, and Humanoid's next reward reads them. Tasks may change the model, too: move a target.
    """
    import mujoco

    if isinstance(live, mujoco.MjData):
        mujoco.mj_copyData(live, live.model, saved)
        live, saved = live.model, saved.model
    copy_fields(live, saved, np.ndarray)  # its numbers are sizes: the same, as it is the same model
    copy_fields(live.opt, saved.opt, np.ndarray | float | int)


def copy_fields(live: Any, saved: Any, kind: Any) -> None:
    for name in dir(saved):
        value = None if name.startswith("_") else getattr(saved, name)
        if isinstance(value, np.ndarray) and isinstance(value, kind):
            getattr(live, name)[...] = value
        elif isinstance(value, kind):
            setattr(live, name, value)


def atari_contents(ale: Any) -> tuple[Any, Any]:
    """The state of an Atari emulator with its random generators, and the action that it may repeat next.

    With sticky actions that is the last one which had an effect. ALE neither saves nor tells it: it is found by trying
    which one leads to the same future. If several do, none of the coming repetitions depends on the choice.
    """
    if Path(ale.getString("rom_file")).stem in FAULTY_GAMES:
        raise ValueError("ALE does not restore this game")
    state, actions = ale.cloneState(include_rng=True), ale.getLegalActionSet()
    if atari_frames(ale) == 0:
        return state, actions[0]
    future = atari_future(ale, actions[0])
    for action in actions:
        put_back_atari(ale, state, action)
        if atari_future(ale, actions[0]) == future:
            put_back_atari(ale, state, action)
            return state, action
    raise ValueError("the emulator repeats an action that it cannot be made to take")


def atari_frames(ale: Any) -> int:
    """So many that an action is repeated for all of them with a probability of e^-40, i.e. never."""
    probability = ale.getFloat("repeat_action_probability")
    return math.ceil(-40 / math.log(probability)) if probability else 0


def atari_future(ale: Any, action: Any) -> list[bytes]:
    """The states that follow, long enough to see all of the coming repetitions of the last action."""
    states = []
    for _ in range(atari_frames(ale)):
        ale.act(action)
        states.append(ale.cloneState(include_rng=False).serialize())
    return states


def put_back_atari(ale: Any, state: Any, action: Any) -> None:
    """Make `action` the last one, and restore the state, once more after a frame of the game.

    For ALE leaves out where its video chip is: in a new emulator, Qbert would go on otherwise. There remains the first
    frame of Yars' Revenge, a few pixels of which may differ; with frames skipped, as usual, nobody sees it.
    """
    ale.restoreState(state)
    for _ in range(atari_frames(ale)):
        ale.act(action)
    ale.restoreState(state)
    ale.act(action)
    ale.restoreState(state)
