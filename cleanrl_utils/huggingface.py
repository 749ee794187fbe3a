"""Share trained policies on the Hugging Face Hub.

Usage:
    python cleanrl/dqn.py --save-model --upload-model [--hf-entity ENTITY]    # push at the end of a training
    python -m cleanrl_utils.huggingface RUN_DIR [--hf-entity ENTITY]          # push a finished run
    python -m cleanrl_utils.enjoy --exp-name dqn --env-id CartPole-v1 [--hf-entity ENTITY]    # pull and evaluate

A repository `{entity}/{env_id}-{exp_name}-seed{seed}` holds the model (safetensors), its arguments and scores (JSON),
the algorithm file, the TensorBoard events, a video and a model card. Of a repository only safetensors and JSON are
loaded; its source is shown on request and never run. The token comes from `hf auth login` or HF_TOKEN and is written
nowhere. A model that is older than its run is only uploaded with --allow-stale, and the card says so.
"""

import importlib.util
import json
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from cleanrl_utils import command_line, provenance
from cleanrl_utils.checkpoint import last_step
from cleanrl_utils.commands import command_again
from cleanrl_utils.evaluate import Evaluation, describe_age, evaluate_run, load_run, model_args, model_step

if TYPE_CHECKING:
    from huggingface_hub import HfApi

ALGORITHMS = Path(__file__).resolve().parents[1] / "cleanrl"


class HubError(Exception):
    """What is wrong and what to do, in one line."""


def hub() -> "HfApi":
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.utils import disable_progress_bars
    except ImportError as error:
        raise HubError('the hub needs an extra: pip install "cleanrl[hub]"') from error
    disable_progress_bars()
    return HfApi(library_name="cleanrl")


def repository(entity: str, env_id: str, exp_name: str, seed: int) -> str:
    """The name of a policy's repository; what the hub does not allow in a name becomes an underscore."""
    name = re.sub(r"[^\w.-]+|--+|\.\.+", "_", f"{env_id}-{exp_name}-seed{seed}", flags=re.ASCII).lstrip("-.")
    if len(name) > 96:
        raise HubError(f"{name}: the hub allows names of 96 characters; choose a shorter --exp-name")
    return f"{entity}/{name}"


@contextmanager
def explained(doing: str) -> Iterator[None]:
    """Turn what huggingface_hub raises into a HubError."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise HubError(f"{doing}: access is restricted; ask for it on the repository's page") from error
    except errors.RepositoryNotFoundError as error:
        advice = "no such repository, or it is private and your token may not read it (hf auth login)"
        raise HubError(f"{doing}: {advice}") from error
    except errors.LocalTokenNotFoundError as error:
        raise HubError(f"{doing}: no token; make one at huggingface.co/settings/tokens, then: hf auth login") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status == 401:
            raise HubError(f"{doing}: the hub does not accept your token; log in again: hf auth login") from error
        if status == 403:
            raise HubError(f"{doing}: your token may not do that; it needs the right to write there") from error
        raise HubError(f"{doing}: the hub answers {status} {error.server_message or ''}".rstrip()) from error
    except (errors.HFValidationError, errors.HfUriError) as error:
        raise HubError(f"{doing}: {' '.join(str(error).split())}") from error
    except Exception as error:
        # by its name: the HTTP library beneath huggingface_hub differs between its versions
        transport = any(kind.__name__ == "TransportError" for kind in type(error).__mro__)
        if transport or isinstance(error, ConnectionError | errors.LocalEntryNotFoundError):
            raise HubError(f"{doing}: cannot reach the hub; is there a network?") from error
        if isinstance(error, OSError):
            raise HubError(f"{doing}: {error}") from error
        raise


def check_upload(args: Any) -> None:
    """Before training: can the model be uploaded after it? Exits with the reason if not."""
    if not args.save_model:
        sys.exit("--upload-model needs --save-model")
    try:
        api = hub()
        with explained("--upload-model"):
            user = api.whoami()
        repository(args.hf_entity or user["name"], args.env_id, args.exp_name, args.seed)
    except HubError as error:
        sys.exit(f"{error}. Or train with --save-model alone and upload later: python -m cleanrl_utils.huggingface")
    names = [user["name"], *(organisation["name"] for organisation in user.get("orgs", []))]
    if args.hf_entity and args.hf_entity not in names:
        sys.exit(f"--hf-entity {args.hf_entity}: your token may upload to {', '.join(names)}")


def trained_with(run_dir: Path) -> dict[str, str]:
    """Commit, versions and hardware of a run, as it noted them itself, and what was changed when it was resumed."""
    facts = provenance.read(run_dir)
    try:
        origin = {name: facts[name] for name in ("commit", "versions", "hardware") if facts[name]}
        for session in facts.get("sessions", [])[1:]:
            changes = [f"{name}: {value}" for name, value in session["args"].items()]
            origin[f"resumed at step {session['from_step']}"] = ", ".join(changes) or "with the same arguments"
        return origin
    except (KeyError, TypeError):
        return {"commit": "not known", "versions": "not known"}


def model_card(
    repo_id: str, args: dict, result: Evaluation, command: str, source: Path, origin: dict[str, str], video: bool
) -> str:
    """The repository's README: metadata for the hub, then what a reader wants to know."""
    import huggingface_hub

    score = huggingface_hub.EvalResult(
        task_type="reinforcement-learning",
        task_name="reinforcement-learning",
        dataset_type=args["env_id"],
        dataset_name=args["env_id"],
        metric_type="mean_reward",
        metric_name="mean_reward",
        metric_value=f"{result.mean:.2f} +/- {result.std:.2f}",
        verified=False,
    )
    tags = ["deep-reinforcement-learning", "reinforcement-learning", "custom-implementation", "cleanrl"]
    data = huggingface_hub.ModelCardData(
        library_name="cleanrl",
        tags=[args["env_id"], *tags],
        model_name=args["exp_name"],
        eval_results=[score],
    )
    card = huggingface_hub.ModelCard.from_template(
        data,
        template_path=Path(__file__).with_name("model_card.md"),
        args=args,
        result=result,
        command=command,
        source=source.name,
        origin=origin,
        video=video,
        entity=repo_id.partition("/")[0],
        quoted_env_id=shlex.quote(args["env_id"]),
        arguments=json.dumps(args, indent=2),
    )
    return str(card)


def push_to_hub(
    run_dir: str | Path,
    entity: str = "",
    result: Evaluation | None = None,
    private: bool = False,
    allow_stale: bool = False,
) -> str:
    """Upload a run's model and all that explains it; returns the address. Evaluates it where no `result` is given."""
    run_dir, api = Path(run_dir), hub()
    try:
        args, module, model_path = load_run(run_dir)
        age = describe_age(run_dir, model_path)
        if age and not allow_stale:
            raise HubError(f"{age}; to upload the old one: --allow-stale")
        if result is None:
            result = evaluate_run(args, module, model_path)
    except (OSError, ImportError) as error:
        raise HubError(str(error)) from error
    result = replace(result, global_step=model_step(model_path), run_step=last_step(run_dir))
    args = model_args(model_path) or args
    with explained("upload"):
        repo_id = repository(entity or api.whoami()["name"], args["env_id"], args["exp_name"], args["seed"])
    source = Path(module.__file__)
    videos = [
        path
        for path in sorted(run_dir.glob("evaluation/videos/*.mp4"))
        if path.stat().st_mtime >= model_path.stat().st_mtime  # else they show an older policy
    ]
    with tempfile.TemporaryDirectory() as folder:  # and nothing else of the run: a checkpoint is a pickle
        for path in (model_path, source, *run_dir.glob("events.out.tfevents.*")):
            shutil.copy(path, folder)
        Path(folder, "args.json").write_text(json.dumps(args, indent=2))
        if videos:
            shutil.copy(videos[-1], Path(folder, "replay.mp4"))
        scores = {"mean": result.mean, "std": result.std} | asdict(result)
        Path(folder, "evaluation.json").write_text(json.dumps(scores, indent=2))
        command = command_again(source, args)
        card = model_card(repo_id, args, result, command, source, trained_with(run_dir), bool(videos))
        Path(folder, "README.md").write_text(card)
        with explained(f"upload to {repo_id}"):
            api.create_repo(repo_id, private=private, exist_ok=True)
            message = f"{args['exp_name']} on {args['env_id']}, seed {args['seed']}"
            api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message=message, delete_patterns="*")
    return f"{api.endpoint}/{repo_id}"


def pull_from_hub(repo_id: str) -> Path:
    """Download a policy, or take it from the cache; only what is safe to load, and the source to look at."""
    api = hub()
    with explained(repo_id):
        patterns = ["args.json", "evaluation.json", "*.safetensors", "*.py"]
        folder = Path(api.snapshot_download(repo_id, allow_patterns=patterns))
        missing = not (folder / "args.json").exists() or not list(folder.glob("*.safetensors"))
        files = api.list_repo_files(repo_id) if missing else []
    if missing:
        pickles = [name for name in files if re.search(r"\.(cleanrl_model|pth?|pkl|pickle|bin|ckpt)$", name)]
        found = f"{pickles[0]} is a pickle, which can run any code when loaded: refused; " if pickles else ""
        raise HubError(f"{repo_id}: {found}this repository has no safetensors model with args.json")
    return folder


def load_pulled(folder: Path) -> tuple[dict, ModuleType, Path, Path | None]:
    """Arguments, algorithm, model and source of a downloaded policy. The algorithm is this repository's own file."""
    try:
        args = json.loads((folder / "args.json").read_text())
        env_id, seed = args["env_id"], args["seed"]
        if not isinstance(env_id, str) or not isinstance(seed, int):
            raise TypeError
    except (ValueError, KeyError, TypeError) as error:
        raise HubError("args.json of the repository does not hold the arguments of a run") from error
    (model_path, *others) = sorted(folder.glob("*.safetensors"))
    if others:
        raise HubError(f"the repository holds several models: {model_path.name}, {others[0].name}, ...")
    ours = {path.stem for path in ALGORITHMS.glob("*.py")} - {"__init__"}
    source = next((path for path in sorted(folder.glob("*.py")) if path.stem in ours), None)
    name = source.stem if source else str(args.get("exp_name"))
    if name not in ours:
        raise HubError(f"the policy was trained by {name}.py, which this version of CleanRL does not have")
    return args, importlib.import_module(f"cleanrl.{name}"), model_path, source


def main(
    run_dir: Annotated[Path, tyro.conf.Positional],
    hf_entity: str = "",
    private: bool = False,
    allow_stale: bool = False,
) -> None:
    """Upload a finished run to the Hugging Face Hub.

    Args:
        run_dir: the folder of the run, trained with --save-model
        hf_entity: the user or organisation to upload to; by default the owner of the token
        private: make the repository private, if it is new
        allow_stale: upload the model even if its run has gone on since it was saved
    """
    try:
        print(push_to_hub(run_dir, hf_entity, private=private, allow_stale=allow_stale))
    except HubError as error:
        sys.exit(f"cannot upload: {error}")


if __name__ == "__main__":
    command_line.run(main, prog="python -m cleanrl_utils.huggingface")
