"""What a run leaves behind: its folder, logs, checkpoints and evaluation. Every algorithm file uses these functions.

A run folder holds TensorBoard events, `args.json`, `provenance.json` (commit, versions, hardware), a copy of the
algorithm file, `checkpoint.pt`, the model and videos.
"""

import errno
import importlib.util
import json
import os
import random
import re
import shutil
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import gymnasium as gym
import numpy as np
import torch
import tyro
from torch.utils.tensorboard import SummaryWriter

from cleanrl_utils.accelerate import accelerate  # noqa: F401 (the files call it as run.accelerate)
from cleanrl_utils.evaluate import SEED_OFFSET, evaluate
from cleanrl_utils.memory import fit  # noqa: F401 (and this as run.fit)
from cleanrl_utils.provenance import provenance
from cleanrl_utils.snapshot import restore_snapshot, take_snapshot

# What a resumed run may not change: its checkpoint would no longer fit, or the flag would have no effect.
FIXED_ON_RESUME = ("env_id", "exp_name", "seed", "num_envs", "buffer_size", "n_atoms", "v_min", "v_max")


def start(run_dir: str, args: Any, script: str, global_step: int) -> SummaryWriter:
    """Make the run folder, start logging (from `global_step` on, when resuming) and explain crashes from now on."""
    if args.upload_model:  # known before the training, not after it
        from cleanrl_utils.huggingface import check_upload

        check_upload(args)
    if not args.resume and os.path.exists(f"{run_dir}/args.json"):
        sys.exit(f"{run_dir} is taken by a run started in the same second; start again")
    try:
        os.makedirs(run_dir, exist_ok=True)
        copy = Path(run_dir, Path(script).name)
        if not copy.exists():
            shutil.copy(script, copy)
        elif copy.read_bytes() != Path(script).read_bytes():
            print(f"{script} has changed since the run began; its copy in {run_dir} stays the old one", file=sys.stderr)
        Path(run_dir, "args.json").write_text(json.dumps(vars(args), indent=2))
        Path(run_dir, "provenance.json").write_text(json.dumps(provenance(script), indent=2))
        if note := os.environ.get("CLEANRL_RUN_DIR_FILE"):  # cleanrl_utils.benchmark asks where the run is
            Path(note).write_text(run_dir)
    except OSError as error:
        sys.exit(f"cannot write the run folder {run_dir}: {error.strerror}")
    sys.excepthook = explain_crash(run_dir, script)
    threading.excepthook = explain_thread_crash
    if args.track:
        start_wandb(run_dir, args)
    # After a kill there may be events beyond the checkpoint: TensorBoard discards those from `purge_step` on
    writer = SummaryWriter(run_dir, purge_step=global_step + 1 if global_step else None, max_queue=1000)
    rows = "\n".join(f"|{name}|{value}|" for name, value in vars(args).items())
    writer.add_text("hyperparameters", f"|param|value|\n|-|-|\n{rows}", global_step)
    return writer


def start_wandb(run_dir: str, args: Any) -> None:
    """Mirror TensorBoard to Weights & Biases; the folder's name is the run's id, so that resuming finds it again."""
    import wandb

    name = Path(run_dir).name
    try:
        wandb.init(
            project=args.wandb_project_name,
            entity=args.wandb_entity,
            id=name,
            name=name,
            resume="allow",
            config=vars(args),
            sync_tensorboard=True,
            save_code=True,
        )
    except wandb.Error as error:
        sys.exit(f"--track: {error} Without an account, set WANDB_MODE=offline.")


def tool(name: str) -> str:
    """How to call a program of this environment from the shell: by its name only if the environment is active."""
    path = Path(sys.executable).with_name(name)
    return name if shutil.which(name) == str(path) or not path.exists() else os.path.relpath(path)


# The extra of this project that brings a module.
EXTRAS = {"ale_py": "atari", "cv2": "atari", "stable_baselines3": "atari", "shimmy": "dm_control"}
EXTRAS |= {"other": "atari"}  # what gymnasium says of a missing OpenCV
EXTRAS |= {name: name for name in ("envpool", "mujoco", "dm_control", "box2d")}


def is_atari(game: str) -> bool:
    """Whether ale_py, if it is there, has the game: another id that ends in -v5 may be a slip of the pen."""
    if importlib.util.find_spec("ale_py"):
        importlib.import_module("ale_py")  # registers its games
    return f"{game}NoFrameskip-v4" in gym.registry


def atari_file() -> str:
    """The file for Atari games that is related to the one that runs."""
    script = Path(sys.argv[0])
    related = script.with_name(f"{script.stem.split('_')[0]}_atari.py")
    return related.name if related.exists() else "ppo_atari.py"


def advice(env_id: str, error: Exception) -> str:
    """Why an environment cannot be made, in a line that says what to do."""
    missing = re.search(r"No module named '(\w+)|gymnasium\[([\w-]+)\]|Namespace (dm_control) not", str(error))
    if missing and missing[1] in (*EXTRAS, None):  # another module is the user's own
        module = missing[missing.lastindex]
        return f'its extra is not installed: pip install "cleanrl[{EXTRAS.get(module, module)}]"'
    unknown = isinstance(error, gym.error.NameNotFound | gym.error.NamespaceNotFound | gym.error.VersionNotFound)
    game = re.sub("^ALE/|NoFrameskip-v4$|-v5$", "", env_id)
    if unknown and env_id == f"{game}-v5" and is_atari(game):
        return f"an id of EnvPool, for ppo_atari_envpool.py; in gymnasium the game is {game}NoFrameskip-v4"
    if unknown and env_id not in (game, f"{game}-v5"):
        known = is_atari(game) or not importlib.util.find_spec("ale_py")
        return f"an Atari game, for {atari_file()}" if known else "no such Atari game"
    if "list_all_envs" in str(error):
        return "no game of EnvPool; those have ids like Breakout-v5. Ids of gymnasium are for ppo_atari.py"
    if re.search("libEGL|libOpenGL", str(error)):
        return "EnvPool needs two libraries of the system, on Debian: apt-get install libegl1 libopengl0"
    if "'episodic_life'" in str(error):
        return "no Atari game; those have ids like Breakout-v5"
    if "'obs_type'" in str(error):
        return "no Atari game; those have ids like BreakoutNoFrameskip-v4, or ALE/Breakout-v5 with sticky actions"
    return " ".join(str(error).split())


def disk_is_full(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


def explain_thread_crash(crash: threading.ExceptHookArgs) -> None:
    """Leave a full disk to the main thread, where TensorBoard's writer raises it again."""
    if not disk_is_full(crash.exc_value):
        threading.__excepthook__(crash)


def explain_crash(run_dir: str, script: str) -> Callable:
    """An exception hook: no traceback for Ctrl+C, a full disk or a diverged run, and always how to go on."""

    def hook(kind: type, error: BaseException, traceback: Any) -> None:
        if not disk_is_full(error) and not issubclass(kind, KeyboardInterrupt | FloatingPointError):
            sys.__excepthook__(kind, error, traceback)
        reason = "interrupted" if kind is KeyboardInterrupt else f"{error}"
        checkpoint = Path(run_dir, "checkpoint.pt")
        if checkpoint.exists():
            step = torch.load(checkpoint, weights_only=False, mmap=True)["global_step"]  # without reading the rest
            world = os.environ.get("WORLD_SIZE")  # under torchrun
            program = f"{tool('torchrun')} --standalone --nproc_per_node={world}" if world else tool("python")
            command = f"{program} {os.path.relpath(script)} --resume {run_dir}"
            advice = f"the last checkpoint is of step {step}: {command}"
        else:
            advice = "there was no checkpoint yet"
        print(f"\nstopped: {reason}; {advice}", file=sys.stderr)

    return hook


def checkpoint_due(args: Any, global_step: int, steps: int) -> bool:
    """Whether the last `steps` steps crossed a multiple of the checkpoint frequency, or ended the run."""
    frequency = args.checkpoint_frequency
    return frequency > 0 and (global_step % frequency < steps or global_step + steps > args.total_timesteps)


def save_checkpoint(
    run_dir: str, args: Any, script: str, envs: Any, writer: SummaryWriter, state: dict, **stateful: Any
) -> None:
    """Write all that resuming needs aside, then rename it into place: a kill at any moment leaves the last good one."""
    writer.flush()  # the curve up to here is on disk before the checkpoint that continues it
    checkpoint = {
        "script": Path(script).name,
        "args": vars(args) | {"resume": None},
        "envs": take_snapshot(envs),
        "random": random.getstate(),
        "numpy_random": np.random.get_state(),
        "torch_random": torch.get_rng_state(),
        "cuda_random": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        **state,
        **{name: x.state_dict() for name, x in stateful.items()},
    }
    path = Path(run_dir, "checkpoint.pt")
    aside = path.with_suffix(".tmp")
    try:
        with open(aside, "wb") as file:
            save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def save(checkpoint: dict, file: BinaryIO) -> None:
    """torch.save, which by itself turns a full disk into an error that does not say so."""
    errors = []

    def write(data: bytes) -> int:
        try:
            return file.write(data)
        except OSError as error:
            errors.append(error)
            raise

    try:
        torch.save(checkpoint, types.SimpleNamespace(write=write, flush=file.flush))
    except Exception as error:
        raise (errors or [error])[0] from None
    if errors:
        raise errors[0]


def load_checkpoint(run_dir: str, script: str, args_class: type) -> tuple[Any, dict]:
    """The arguments and the last checkpoint of a run of `script`; flags on the command line win over saved ones.

    Like any pickle, a checkpoint can execute code when it is loaded: resume only runs you trust.
    """
    path, name = Path(run_dir, "checkpoint.pt"), Path(script).name
    if not Path(run_dir, "args.json").exists():
        sys.exit(f"--resume {run_dir}: not a run folder")
    if not path.exists():
        sys.exit(f"--resume {run_dir}: the run has no checkpoint yet; start it again")
    try:
        checkpoint = torch.load(path, weights_only=False, map_location="cpu", mmap=True)  # a replay buffer is large
    except Exception as error:  # a damaged file raises whatever its damage leads to
        sys.exit(f"--resume {run_dir}: cannot read checkpoint.pt: {error}")
    if checkpoint["script"] != name:
        sys.exit(f"--resume {run_dir}: a run of {checkpoint['script']}, not of {name}; resume it with that script")
    saved = args_class(**checkpoint["args"])
    args = tyro.cli(args_class, default=saved)
    for flag in FIXED_ON_RESUME:
        if getattr(args, flag, None) != getattr(saved, flag, None):
            option = flag.replace("_", "-")
            sys.exit(
                f"--resume {run_dir}: --{option} is {getattr(saved, flag)} there and cannot change; start a new run"
            )
    return args, checkpoint


def restore(checkpoint: dict, envs: Any, **stateful: Any) -> tuple:
    """Put everything back as it was at the checkpoint; returns global_step, next_obs and recent_returns."""
    for name, x in stateful.items():
        rates = [group["lr"] for group in getattr(x, "param_groups", [])]  # tensors that the script sets: they stay
        x.load_state_dict(checkpoint[name])
        for group, rate in zip(getattr(x, "param_groups", []), rates, strict=True):
            group["lr"] = rate
    global_step, next_obs = checkpoint["global_step"], checkpoint["next_obs"]
    if checkpoint["envs"] is not None:
        restore_snapshot(envs, checkpoint["envs"])
    else:
        print("these environments cannot be saved: their episodes start again", file=sys.stderr)
        if isinstance(envs, list):  # EnvPool's, which take their seeds when they are made
            next_obs = np.concatenate([pool.reset()[0] for pool in envs])
        else:
            next_obs, _ = envs.reset(seed=checkpoint["args"]["seed"] + global_step)
    random.setstate(checkpoint["random"])
    np.random.set_state(checkpoint["numpy_random"])
    torch.set_rng_state(checkpoint["torch_random"])
    if torch.cuda.is_available() and checkpoint["cuda_random"]:
        torch.cuda.set_rng_state_all(checkpoint["cuda_random"])
    return global_step, next_obs, checkpoint["recent_returns"]


def finish(
    run_dir: str, args: Any, writer: SummaryWriter, make_envs: Callable, load_policy: Callable, recent_returns: list
) -> None:
    """Evaluate the saved model, upload it where asked, and say where everything is."""
    lines, failed = {"run": run_dir}, False
    if recent_returns:
        lines["training"] = f"mean return {np.mean(recent_returns):.2f} over the last {len(recent_returns)} episodes"
    if args.save_model:
        lines["model"] = f"{run_dir}/{args.exp_name}.safetensors"
        result = evaluate(
            lines["model"],
            args.env_id,
            make_envs,
            load_policy,
            seed=args.seed + SEED_OFFSET,
            video_dir=f"{run_dir}/evaluation" if args.capture_video else None,
        )
        for episode, episodic_return in enumerate(result.returns):
            writer.add_scalar("eval/episodic_return", episodic_return, episode)
        lines["evaluation"] = str(result)
        lines["again"] = f"{tool('python')} -m cleanrl_utils.evaluate {run_dir} --episodes 100"
    if args.upload_model:
        from cleanrl_utils.huggingface import HubError, push_to_hub

        writer.flush()  # the curves are uploaded, too
        try:
            lines["hub"] = push_to_hub(run_dir, args.hf_entity, result)
        except HubError as error:
            failed = True
            lines["hub"] = f"{error}. Again: {tool('python')} -m cleanrl_utils.huggingface {run_dir}"
    if args.capture_video:
        lines["video"] = f"{run_dir}/evaluation/videos" if args.save_model else f"{run_dir}/videos"
        if args.track:  # by hand: wandb's own monitor_gym breaks gymnasium's wrapper
            import wandb

            for video in sorted(Path(run_dir).glob("**/*.mp4")):
                name = video.relative_to(run_dir).with_suffix("").as_posix()
                wandb.log({name: wandb.Video(str(video), format="mp4")})
    lines["curves"] = f"{tool('tensorboard')} --logdir {Path(run_dir).parent}"
    print("\n" + "\n".join(f"{name + ':':<11} {line}" for name, line in lines.items()))
    if failed:
        writer.close()
        sys.exit("the upload failed, see above; the run is complete")
