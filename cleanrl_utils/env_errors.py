"""Why an environment cannot be made, in a line that says what to do.

Only mistakes of the user are explained: a wrong id, a package that is not installed, actions of the wrong kind. A bug
in somebody's own environment keeps its traceback, which shows where the bug is.
"""

import difflib
import importlib.util
import re
import sys
import sysconfig
import traceback
from pathlib import Path

import gymnasium as gym

# The extra of this project that brings a module.
EXTRAS = {
    "ale_py": "atari",
    "cv2": "atari",
    "stable_baselines3": "atari",
    "other": "atari",  # what gymnasium says of a missing OpenCV
    "shimmy": "dm_control",
    "dm_control": "dm_control",
    "envpool": "envpool",
    "mujoco": "mujoco",
    "box2d": "box2d",
    "minigrid": "memory",
    "pettingzoo": "pettingzoo",
}
PROCGEN = "bigfish, bossfight, caveflyer, chaser, climber, coinrun, dodgeball, fruitbot, heist, jumper, leaper, maze, "
PROCGEN += "miner, ninja, plunder and starpilot"
# Libraries whose errors are about how they are used: an error from inside any other code is a bug there.
LIBRARIES = {"gymnasium", "ale_py", "cv2", "stable_baselines3", "shimmy", "dm_control", "dm_env", "envpool", "mujoco"}
LIBRARIES |= {"Box2D", "pygame", "moviepy", "numpy", "minigrid", "memory_gym", "pettingzoo", "multi_agent_ale_py"}
LIBRARIES |= {"brax", "jax"}
MISTAKES = (gym.error.Error, AssertionError, ImportError, TypeError, ValueError, OSError)


def explain_env_error(env_id: str, error: Exception) -> str:
    """What to do about an error of `make_envs`; raises the error again if it is a bug and not a mistake of the user."""
    line = advice(env_id, error)
    if line is None:
        if not isinstance(error, MISTAKES) or comes_from_foreign_code(error):
            raise error
        line = " ".join(str(error).split())
    return f"cannot train on {env_id}: {line}"


def comes_from_foreign_code(error: BaseException) -> bool:
    """Whether a line of something else than the script, Python or a library took part in the error."""
    frames = traceback.extract_tb(error.__traceback__)
    if any(is_foreign(frame.filename) for frame in frames):
        return True
    if frames and is_script(frames[-1].filename) and isinstance(error, TypeError | AssertionError):
        return True  # a slip in the script itself; what it raises on purpose is a ValueError
    earlier = error.__cause__ or error.__context__  # gymnasium raises some errors once more, in other words
    return earlier is not None and comes_from_foreign_code(earlier)


def is_foreign(filename: str) -> bool:
    path = Path(filename)
    for folder in ("purelib", "platlib"):
        packages = Path(sysconfig.get_path(folder))
        if path.is_relative_to(packages):
            return path.relative_to(packages).parts[0] not in LIBRARIES
    is_python = filename.startswith("<") or path.is_relative_to(sysconfig.get_path("stdlib"))
    return not is_python and not is_script(filename)


def is_script(filename: str) -> bool:
    return Path(filename).resolve() == Path(sys.argv[0]).resolve()


def advice(env_id: str, error: Exception) -> str | None:
    """What to do about the errors that users meet most; None about any other."""
    text = str(error)
    if type(error).__module__ == "pettingzoo.env_registry.exceptions":
        if isinstance(error.__cause__, ImportError):  # of its emulator
            return 'its extra is not installed: pip install "cleanrl[pettingzoo]"'
        return "no game of PettingZoo's Atari; those have ids like pong_v3. Games of one player are for ppo_atari.py"
    missing = re.search(r"No module named '(\w+)", text) or re.search(r"gymnasium\[([\w-]+)\]", text)
    if missing and missing[1] in EXTRAS:  # another module is the user's own
        extra = "pettingzoo" if is_mentioned_by_script("import pettingzoo") else EXTRAS[missing[1]]
        return f'its extra is not installed: pip install "cleanrl[{extra}]"'
    if missing and missing[1] == "memory_gym":  # in no extra: it asks for versions of other packages from years ago
        return "its package is not installed: pip install --no-deps memory-gym==1.0.2"
    if missing and missing[0].startswith("gymnasium["):
        return f'its extra is not installed: pip install "cleanrl[{missing[1]}]"'
    if "Namespace dm_control not" in text:
        if is_mentioned_by_script("shimmy"):  # which brings these environments: this file is for them
            return 'its extra is not installed: pip install "cleanrl[dm_control]"'
        return "its actions are continuous; that is for ppo_continuous_action.py, not for a file with discrete actions"
    unknown = isinstance(error, gym.error.NameNotFound | gym.error.NamespaceNotFound | gym.error.VersionNotFound)
    game = re.sub("^ALE/|NoFrameskip-v4$|-v5$", "", env_id)
    if unknown and env_id == f"{game}-v5" and is_atari(game):
        return f"an id of EnvPool, for {atari_file('_atari_envpool.py')}; in gymnasium the game is {game}NoFrameskip-v4"
    if unknown and env_id not in (game, f"{game}-v5"):
        known = is_atari(game) or not importlib.util.find_spec("ale_py")
        return f"an Atari game, for {atari_file()}" if known else "no such Atari game"
    if isinstance(error, gym.error.NameNotFound) and is_mentioned_by_script('f"ale_py:{env_id}"'):
        return f"no such Atari game; those have ids like {closest_game(game)}"  # gymnasium might suggest a robot
    if "'num_levels'" in text or ("list_all_envs" in text and is_mentioned_by_script("num_levels")):
        return f"no game of Procgen; those are {PROCGEN}, or with harder levels ids like StarpilotHard-v0"
    if "list_all_envs" in text:
        return "no game of EnvPool; those have ids like Breakout-v5. Ids of gymnasium are for ppo_atari.py"
    if "mujoco v2 and v3" in text:
        return f"gymnasium has no v2 and v3 of it any more; write {re.sub('-v[23]$', '-v4', env_id)}"
    if "only supported on `mujoco<3`" in text:
        return f"it is only for MuJoCo 2; write {re.sub('-v4$', '-v5', env_id)}"
    if re.search("libEGL|libOpenGL", text):
        return "EnvPool needs two libraries of the system, on Debian: apt-get install libegl1 libopengl0"
    if "Qt 5 runtime" in text:
        return "Procgen needs a library of the system, on Debian: apt-get install libqt5gui5"
    if "'episodic_life'" in text:
        return "no Atari game; those have ids like Breakout-v5"
    if "'obs_type'" in text:
        return "no Atari game; those have ids like BreakoutNoFrameskip-v4, or ALE/Breakout-v5 with sticky actions"
    return None


def is_atari(game: str) -> bool:
    """Whether ale_py, if it is there, has the game: another id that ends in -v5 may be a slip of the pen."""
    if importlib.util.find_spec("ale_py"):
        importlib.import_module("ale_py")  # registers its games
    return f"{game}NoFrameskip-v4" in gym.registry


def closest_game(game: str) -> str:
    """The id of the Atari game whose name is most alike, or of Breakout if none is."""
    ending = "NoFrameskip-v4"
    games = [env_id.removesuffix(ending) for env_id in gym.registry if env_id.endswith(ending)]
    closest = difflib.get_close_matches(game, games, n=1)
    return (closest or ["Breakout"])[0] + ending


def is_mentioned_by_script(word: str) -> bool:
    try:
        return word in Path(sys.argv[0]).read_text()
    except OSError:
        return False


def atari_file(ending: str = "_atari.py") -> str:
    """The file for Atari games that is related to the one that runs."""
    script = Path(sys.argv[0])
    related = script.with_name(script.stem.split("_")[0] + ending)
    in_jax = related.with_name(f"{related.stem}_jax.py")
    if script.stem.endswith("_jax") and in_jax.exists():
        return in_jax.name
    return related.name if related.exists() else f"ppo{ending}"
