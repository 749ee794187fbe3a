"""What simulators hold, MuJoCo's and two Atari emulators', to be saved and put back where they are: see snapshot.py."""

import math
from pathlib import Path
from typing import Any

import numpy as np

DM_CONTROL = "dm_control.mujoco.engine.Physics"
ATARI = "ale_py._ale_py.ALEInterface"
# The emulator of PettingZoo, for games of several players
PETTINGZOO = "multi_agent_ale_py.ale_python_interface.ALEInterface"
# Games that ALE 0.12.1 restores with faults: a wrong reward, a picture that is not drawn anew, another cartridge clock.
FAULTY_GAMES = {"miniature_golf", "tic_tac_toe_3d", "pitfall2"}


def class_names(x: Any) -> set[str]:
    return {f"{cls.__module__}.{cls.__name__}" for cls in type(x).__mro__}


def contents(simulator: Any) -> Any:
    """What holds the state of a simulator: MuJoCo's own structures, or what can be got out of an Atari emulator."""
    names = class_names(simulator)
    if ATARI in names:
        return atari_contents(simulator)
    if PETTINGZOO in names:
        return pettingzoo_contents(simulator)
    return simulator.data.ptr if DM_CONTROL in names else simulator


def put_back(simulator: Any, saved: Any) -> None:
    if ATARI in class_names(simulator):
        put_back_atari(simulator, *saved)
    elif PETTINGZOO in class_names(simulator):
        put_back_pettingzoo(simulator, saved)
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


def pettingzoo_contents(ale: Any) -> np.ndarray:
    """The state of PettingZoo's emulator with its random generators, as bytes."""
    state = ale.cloneSystemState()  # a pointer, to be freed
    encoded = ale.encodeState(state)
    ale.deleteState(state)
    return encoded


def put_back_pettingzoo(ale: Any, encoded: np.ndarray) -> None:
    state = ale.decodeState(encoded)
    ale.restoreSystemState(state)
    ale.deleteState(state)
