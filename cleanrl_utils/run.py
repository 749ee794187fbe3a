"""What a run leaves behind: its folder, logs, checkpoints and evaluation. Every algorithm file uses these functions.

A run folder holds TensorBoard events, `args.json`, `provenance.json` (what was trained with what, from which step on),
a copy of the algorithm file, `checkpoint.pt`, the model and videos.
"""

import dataclasses
import inspect
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

try:
    from cleanrl_utils import backend, command_line, crash, jax_globals, jax_trees, progress, provenance, ranks, stop
    from cleanrl_utils import checkpoint as checkpoints
    from cleanrl_utils.checkpoint import checkpoint_due, save_checkpoint, save_checkpoints  # noqa: F401 (for the files)
    from cleanrl_utils.checks import check, option
    from cleanrl_utils.commands import tool
    from cleanrl_utils.curves import wait_for_the_last_name, write_in_batches
    from cleanrl_utils.env_errors import explain_env_error  # noqa: F401
    from cleanrl_utils.env_ids import understand_env_id
    from cleanrl_utils.evaluate import describe_age, evaluate, evaluation_seed, model_args
    from cleanrl_utils.files import write_json
    from cleanrl_utils.flags import parse_args  # noqa: F401
    from cleanrl_utils.lock import lock, unlock
    from cleanrl_utils.memory import place_buffer  # noqa: F401
    from cleanrl_utils.progress import final_step
    from cleanrl_utils.restore import load, restore  # noqa: F401
    from cleanrl_utils.snapshot import take_snapshot  # noqa: F401
    from cleanrl_utils.words import plural
except ModuleNotFoundError as error:  # a script takes that for a machine without cleanrl_utils, and trains without it
    raise ImportError(f"cleanrl_utils is there, but not complete: {error}") from error

# What a resumed run may not change: its checkpoint would no longer fit, or the flag would have no effect.
FIXED_ON_RESUME = ("env_id", "exp_name", "seed", "num_envs", "num_steps", "buffer_size", "n_atoms", "v_min", "v_max")
FIXED_ON_RESUME += ("n_step", "teacher_steps", "offline_steps", "teacher_eval_episodes", "teacher_model_path")
FIXED_ON_RESUME += ("teacher_policy_hf_repo", "teacher_model_exp_name", "num_iterations_obs_norm_init")
FIXED_ON_RESUME += ("n_iteration", "trxl_num_layers", "trxl_num_heads", "trxl_dim", "trxl_memory_length")
FIXED_ON_RESUME += ("trxl_positional_encoding", "alpha", "autotune")
# Flags that do not take part in the training: they may be given for a run that has nothing left to train.
AFTER_TRAINING = ("save_model", "upload_model", "hf_entity", "capture_video", "cuda", "resume")
AFTER_TRAINING += ("track", "wandb_project_name", "wandb_entity")
prepared_args = None  # those that the script reads from


def prepare(args: Any, script: str) -> tuple[Any, dict | None]:
    """Check the flags; with --resume, also read the arguments and the checkpoint of that run.

    Flags on the command line win over the saved ones.
    """
    global prepared_args
    crash.hide_ctrl_c()
    crash.forgive_closed_pipes()
    if not args.resume:
        check(args)
        args = prepared_args = understand_env_id(args)
        check_upload(args)
        return args, None
    run_dir = args.resume
    if not Path(run_dir, "args.json").exists():
        sys.exit(f"--resume {run_dir}: not a run folder")
    if ranks.is_first():
        try:
            lock(run_dir)
        except OSError as error:
            sys.exit(f"cannot write the run folder {run_dir}: {error.strerror}")
    checkpoint = load(run_dir, script)
    saved = saved_args(type(args), checkpoint["args"], run_dir)
    args = command_line.parse(type(args), default=saved)
    check(args)
    args = understand_env_id(args)
    check_upload(args)
    for flag in FIXED_ON_RESUME:
        value = getattr(saved, flag, None)
        if getattr(args, flag, None) != value:
            sys.exit(f"--resume {run_dir}: {option(flag)} is {value} there and cannot change; start a new run")
    args = prepared_args = settle_finished(args, saved, checkpoint["global_step"])
    checkpoint["run_dir"] = run_dir
    checkpoint["changed"] = [name for name, value in vars(args).items() if value != getattr(saved, name)]
    return args, checkpoint


def check_upload(args: Any) -> None:
    """Whether the model can be uploaded is better known before the training than after it."""
    if args.upload_model and ranks.is_first():
        from cleanrl_utils import huggingface

        huggingface.check_upload(args)


def saved_args(args_class: type, values: dict, run_dir: str) -> Any:
    """The arguments of a checkpoint as those of the file, which may have got and lost some since."""
    fields = [field.name for field in dataclasses.fields(args_class)]
    lost = [option(name) for name in values if name not in fields]
    new = [option(name) for name in fields if name not in values]
    changes = [f"it no longer has {', '.join(lost)}"] if lost else []
    changes += [f"it now has {', '.join(new)}"] if new else []
    if changes and ranks.is_first():
        print(f"--resume {run_dir}: the file has changed since: {', and '.join(changes)}", file=sys.stderr)
    return args_class(**{name: value for name, value in values.items() if name in fields})


def settle_finished(args: Any, saved: Any, global_step: int) -> Any:
    """The arguments to go on with. A run that has nothing left to train keeps those that it was trained with."""
    if global_step < final_step(vars(args)):
        return args
    if final_step(vars(args)) < final_step(vars(saved)):
        sys.exit(f"--total-timesteps {args.total_timesteps}: the run is at step {global_step} already")
    given = {name: getattr(args, name) for name in AFTER_TRAINING}
    line = f"{args.resume} is complete at step {global_step}: nothing is left to train (more --total-timesteps go on)"
    settled = dataclasses.replace(saved, **given)
    without_effect = [option(name) for name, value in vars(args).items() if value != getattr(settled, name)]
    if without_effect:
        line += f"; without effect: {', '.join(without_effect)}"
    if ranks.is_first():
        print(line)
    return settled


def find_teacher(args: Any) -> str:
    """The model file to learn from: of a run folder, a file itself, or on the hub. Exits with a line without one."""
    from cleanrl_utils.huggingface import HubError, pull_from_hub, repository

    place = args.teacher_model_path
    if place is None:
        try:
            name = args.teacher_policy_hf_repo or repository("cleanrl", args.env_id, args.teacher_model_exp_name, 1)
            place = pull_from_hub(name)
        except HubError as error:
            script = f"{args.teacher_model_exp_name}.py"
            advice = f"train one with {script} --save-model, and name its folder: --teacher-model-path RUN_DIR"
            sys.exit(f"no teacher ({error}); {advice}")
    models = sorted(Path(place).glob("*.safetensors")) if Path(place).is_dir() else [Path(place)]
    if not models and Path(place, "checkpoint.pt").exists():  # a model is saved at the end of a training
        sys.exit(f"--teacher-model-path {place}: the run has no model; --resume it to its end with --save-model")
    if len(models) != 1 or not models[0].is_file():
        sys.exit(f"--teacher-model-path {place}: neither a model file nor a run folder with one model (--save-model)")
    game = (model_args(models[0]) or {}).get("env_id", args.env_id)
    if game != args.env_id:
        sys.exit(f"the teacher {models[0]} plays {game}, not --env-id {args.env_id}")
    age = describe_age(models[0].parent, models[0])
    if age:
        print(f"the teacher: {age}", file=sys.stderr)
    return str(models[0])


def accelerate(args: Any, script: str, act: Callable, update: Callable, state: dict) -> tuple[Callable, Callable]:
    """The same two functions of PyTorch, faster where that is allowed: see cleanrl_utils/accelerate."""
    from cleanrl_utils import accelerate as acceleration

    return acceleration.accelerate(args, script, act, update, state)


def start(run_dir: str, args: Any, script: str, global_step: int) -> Any:
    """Make the run folder, start logging (from `global_step` on, when resuming), and heed signals from now on.

    Returns nothing in the processes of torchrun that do not write.
    """
    if not ranks.is_first():
        stop.install()
        checkpoints.start_clock()
        return None
    if not args.resume and os.path.exists(f"{run_dir}/args.json"):
        sys.exit(f"{run_dir} is taken by a run started in the same second; start again")
    goes_on = global_step < final_step(vars(args))
    try:
        os.makedirs(run_dir, exist_ok=True)
        lock(run_dir)
        copy_script(script, run_dir)
        if goes_on:  # else both tell of the training that was
            write_json(Path(run_dir, "args.json"), vars(args))
            provenance.add_session(run_dir, script, args, global_step)
        note = os.environ.get("CLEANRL_RUN_DIR_FILE")
        if note:  # cleanrl_utils.benchmark asks where the run is
            Path(note).write_text(run_dir)
    except OSError as error:
        sys.exit(f"cannot write the run folder {run_dir}: {error.strerror}")
    crash.install(run_dir, script)
    if args.track:
        start_wandb(run_dir, args)
    if backend.pytorch():
        from torch.utils.tensorboard import SummaryWriter
    else:
        from cleanrl_utils.writer import SummaryWriter
    wait_for_the_last_name(run_dir)
    # After a kill there may be events beyond the checkpoint: TensorBoard discards those from `purge_step` on
    writer = SummaryWriter(run_dir, purge_step=global_step + 1 if global_step else None, max_queue=1000)
    write_in_batches(writer)
    progress.follow(writer, run_dir, final_step(vars(args)))
    if goes_on:
        rows = "\n".join(f"|{name}|{value}|" for name, value in vars(args).items())
        writer.add_text("hyperparameters", f"|param|value|\n|-|-|\n{rows}", global_step)
    if "\n    import jax\n" in Path(script).read_text():
        jax_trees.freeze(prepared_args)
        jax_globals.watch(inspect.currentframe().f_back.f_globals)
    checkpoints.start_clock()
    stop.install()
    return writer


def copy_script(script: str, run_dir: str) -> None:
    """Keep the algorithm file as it was when the run began."""
    copy = Path(run_dir, Path(script).name)
    if not copy.exists():
        shutil.copy(script, copy)
    elif copy.read_bytes() != Path(script).read_bytes():
        print(f"{script} has changed since the run began; its copy in {run_dir} stays the old one", file=sys.stderr)


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


def finish(
    run_dir: str, args: Any, writer: Any, make_envs: Callable, load_policy: Callable, recent_returns: list
) -> None:
    """Evaluate the saved model, upload it where asked, and say where everything is."""
    has_checkpoint = Path(run_dir, "checkpoint.pt").exists()
    again = f"--resume {run_dir}" if has_checkpoint else f"{tool('python')} -m cleanrl_utils.evaluate {run_dir}"
    stop.stop_at_once(f"the training is complete, and {again} evaluates it")
    acceleration = sys.modules.get("cleanrl_utils.accelerate")
    if acceleration:
        acceleration.last_audit()
        acceleration.proofs.report(acceleration.replayed)
    last_step = max(final_step(vars(args)), checkpoints.last_step(run_dir) or 0)
    provenance.note_step(run_dir, last_step)
    mean_return = float(np.mean(recent_returns)) if recent_returns else None
    progress.note(run_dir, {"step": last_step, "total_steps": last_step, "episodic_return": mean_return})
    lines, failed = {"run": run_dir}, False
    if recent_returns:
        lines["training"] = f"mean return {mean_return:.2f} over the last {plural(len(recent_returns), 'episode')}"
    if args.save_model:
        model_path = f"{run_dir}/{args.exp_name}.safetensors"
        make_readable(model_path)
        lines["model"] = model_path
        result = evaluate(
            model_path,
            args.env_id,
            make_envs,
            load_policy,
            seed=evaluation_seed(args.seed),
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
    unlock(run_dir)
    stop.uninstall()
    crash.uninstall()
    if failed:
        writer.close()
        sys.exit("the upload failed, see above; the run is complete")


def make_readable(model_path: str) -> None:
    """Give the model the mode of any new file; safetensors lets only its owner read it."""
    umask = os.umask(0)
    os.umask(umask)
    os.chmod(model_path, 0o666 & ~umask)
