"""The hub: what is pushed can be pulled, scores the same, and nothing that comes from a stranger is executed.

The tests talk to a small server that speaks the hub's HTTP interface as huggingface_hub uses it (FakeHub below): who am
I, create a repository, commit, upload through Git LFS, list, download.
"""

import base64
import hashlib
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import threading
import types
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from conftest import ROOT, Runner

huggingface_hub = pytest.importorskip("huggingface_hub", reason="the extra hub is not installed")
from huggingface_hub import constants  # noqa: E402
from huggingface_hub.utils import validate_repo_id  # noqa: E402

from cleanrl_utils import enjoy  # noqa: E402
from cleanrl_utils.evaluate import Evaluation  # noqa: E402
from cleanrl_utils.huggingface import (  # noqa: E402
    HubError,
    check_upload,
    main,
    pull_from_hub,
    push_to_hub,
    repository,
    trained_with,
)
from cleanrl_utils.provenance import note_step  # noqa: E402

TOKEN = "hf_thisIsTheSecretOfTheTests"
SHORT_DQN = ["--no-cuda", "--total-timesteps", "600", "--learning-starts", "500", "--buffer-size", "500"]


class FakeHub(BaseHTTPRequestHandler):
    """Repositories in memory: {name: {path: bytes}}, a commit for each state."""

    repos: dict[str, dict[str, bytes]] = {}
    private: set[str] = set()
    gated: set[str] = set()
    locked = False
    lfs: dict[str, bytes] = {}
    requests: list[str] = []

    def log_message(self, *_):
        pass

    def commit_of(self, repo: str) -> str:
        return hashlib.sha1(json.dumps({k: len(v) for k, v in self.repos[repo].items()}).encode()).hexdigest()

    def answer(self, status: int, body: dict | list | bytes, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Type", "application/octet-stream" if isinstance(body, bytes) else "application/json")
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def refuse(self, status: int, code: str = "", message: str = "") -> None:
        self.answer(status, {"error": message}, **({"X_Error_Code": code} if code else {}))

    def handle_any(self) -> None:
        path = unquote(urlsplit(self.path).path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.requests.append(f"{self.command} {path}")
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if path == "/api/whoami-v2":
            if token != TOKEN:
                return self.refuse(401, message="Invalid username or password.")
            return self.answer(200, {"name": "me", "type": "user", "orgs": [{"name": "team"}]})
        if path == "/api/validate-yaml":  # of a model card
            metadata = yaml.safe_load(json.loads(body)["content"].split("---")[1])
            errors = [] if metadata["model-index"][0]["results"] else [{"message": "no results"}]
            return self.answer(400 if errors else 200, {"errors": errors, "warnings": []})
        if path == "/api/repos/create":
            spec = json.loads(body)
            name = f"{spec.get('organization') or 'me'}/{spec['name']}"
            if self.locked or token != TOKEN or name.split("/")[0] not in ("me", "team"):
                return self.refuse(403, message="You don't have the rights to create a model there")
            if name in self.repos:
                return self.answer(409, {"error": "You already created this model repo", "url": f"/{name}"})
            self.repos[name] = {}
            return self.answer(200, {"url": f"{self.url}/{name}", "name": name, "id": name})
        if path.startswith("/lfs/"):  # where a file goes after the LFS batch request
            self.lfs[path.removeprefix("/lfs/")] = body
            return self.answer(200, b"")
        match = re.fullmatch(r"/(?:api/models/)?([\w.-]+/[\w.-]+?)(?:\.git)?(?:/(\w.*))?", path)
        repo, action = match[1], match[2] or ""
        if repo not in self.repos or (repo in self.private and token != TOKEN):
            return self.refuse(404 if token else 401, "RepoNotFound", "Repository not found")
        if repo in self.gated:
            return self.refuse(403, "GatedRepo", "Access to this model is restricted")
        files, commit = self.repos[repo], self.commit_of(repo)
        if self.command in ("POST", "PUT") and token != TOKEN:
            return self.refuse(403, message="no right to write")
        if action.startswith("preupload/"):
            modes = {True: "lfs", False: "regular"}
            listed = [
                {"path": x["path"], "uploadMode": modes[x["path"].endswith(("safetensors", "mp4"))]}
                | {"shouldIgnore": False, "oid": None}
                for x in json.loads(body)["files"]
            ]
            return self.answer(200, {"files": listed})
        if action == "info/lfs/objects/batch":
            objects = [
                {"oid": x["oid"], "size": x["size"], "actions": {"upload": {"href": f"{self.url}/lfs/{x['oid']}"}}}
                for x in json.loads(body)["objects"]
            ]
            return self.answer(200, {"transfer": "basic", "objects": objects})
        if action.startswith("commit/"):
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    files[value["path"]] = self.lfs[value["oid"]]
                elif line["key"] == "deletedFile":
                    del files[value["path"]]
            oid = self.commit_of(repo)
            return self.answer(200, {"commitUrl": f"{self.url}/{repo}/commit/{oid}", "commitOid": oid})
        if action.startswith("tree/"):
            return self.answer(200, [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in files.items()
            ])  # fmt: skip
        if action.startswith("resolve/"):
            name = action.split("/", 2)[2]
            if name not in files:
                return self.refuse(404, "EntryNotFound", "no such file")
            etag = f'"{hashlib.sha1(files[name]).hexdigest()}"'
            return self.answer(200, files[name], ETag=etag, X_Repo_Commit=commit)
        siblings = [{"rfilename": name} for name in files]
        return self.answer(200, {"id": repo, "modelId": repo, "sha": commit, "siblings": siblings, "private": False})

    do_GET = do_HEAD = do_POST = do_PUT = handle_any


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub of the test's own, with its token in the environment and an empty cache."""
    FakeHub.repos, FakeHub.private, FakeHub.gated, FakeHub.lfs, FakeHub.requests = {}, set(), set(), {}, []
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeHub)
    FakeHub.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
    settings = {"HF_ENDPOINT": FakeHub.url, "HF_HOME": str(tmp_path / "hf"), "HF_TOKEN": TOKEN}
    for name, value in (settings | {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}).items():
        monkeypatch.setenv(name, value)  # for programs that are started
    # and for this one, which has read its environment already
    monkeypatch.setattr(constants, "ENDPOINT", FakeHub.url)
    template = FakeHub.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "hf" / "token"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    yield FakeHub
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A run of dqn.py with a model."""
    return Runner(tmp_path_factory.mktemp("trained")).train(
        *SHORT_DQN, "--save-model", "--gamma", "0.97", script=ROOT / "cleanrl" / "dqn.py"
    )


def play(*flags: str) -> None:
    """The command line of enjoy, in this process."""
    enjoy.tyro.cli(enjoy.main, args=["--show", "nothing", *flags, "--no-cuda"])


HERE = ["--exp-name", "dqn", "--env-id", "CartPole-v1", "--hf-entity", "me"]
RESULT = Evaluation([9.0, 11.0], [9, 11])


def test_a_training_uploads_its_model_and_anybody_can_play_it(hub, tmp_path):
    """The whole way, with the programs as users run them."""
    runner = Runner(tmp_path / "here")
    runner.folder.mkdir()
    flags = [*SHORT_DQN, "--save-model", "--upload-model", "--capture-video"]
    run_dir = runner.train(*flags, script=ROOT / "cleanrl" / "dqn.py")
    files = hub.repos["me/CartPole-v1-dqn-seed1"]
    events = next(run_dir.glob("events.*")).name
    assert set(files) == {
        "README.md", "args.json", "dqn.py", "dqn.safetensors", "evaluation.json", "replay.mp4", events
    }  # fmt: skip
    assert files["dqn.safetensors"] == (run_dir / "dqn.safetensors").read_bytes()
    assert files["dqn.py"] == (ROOT / "cleanrl" / "dqn.py").read_bytes()

    elsewhere = Runner(tmp_path / "elsewhere")
    elsewhere.folder.mkdir()
    done = elsewhere.run("-m", "cleanrl_utils.enjoy", *HERE, "--eval-episodes", "10")
    claimed = re.search("claimed: (mean return .*)", done.stdout)[1]
    assert f"here:    {claimed}\n" in done.stdout  # the same episodes, the same scores


def test_what_was_pulled_can_be_filmed(hub, trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    push_to_hub(trained, result=RESULT)
    play(*HERE, "--eval-episodes", "1", "--capture-video")
    assert list(tmp_path.glob("runs/enjoy/me_CartPole-v1-dqn-seed1/videos/*.mp4"))


@pytest.mark.slow
def test_when_the_upload_fails_the_run_is_complete_and_can_be_uploaded_later(hub, tmp_path, monkeypatch):
    runner = Runner(tmp_path)
    monkeypatch.setattr(hub, "locked", True)
    flags = [*SHORT_DQN, "--save-model", "--upload-model"]
    done = runner.run(ROOT / "cleanrl" / "dqn.py", *flags, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr and not hub.repos
    again = re.search(
        "hub: .*your token may not do that.* Again: .*python (-m cleanrl_utils.huggingface .*)", done.stdout
    )
    monkeypatch.setattr(hub, "locked", False)
    done = runner.run(*again[1].split())
    assert (
        done.stdout == f"{hub.url}/me/CartPole-v1-dqn-seed1\n"
        and "dqn.safetensors" in hub.repos["me/CartPole-v1-dqn-seed1"]
    )


@pytest.mark.parametrize("facts", [None, "", "[]", '{"commit": "abc"}'])
def test_a_run_without_origin_says_so_in_its_card(tmp_path, facts):
    if facts is not None:
        (tmp_path / "provenance.json").write_text(facts)
    assert trained_with(tmp_path) == {"commit": "not known", "versions": "not known"}


def test_the_card_says_what_it_scores_and_how_to_get_it_again(hub, trained):
    assert push_to_hub(trained, result=RESULT) == f"{hub.url}/me/CartPole-v1-dqn-seed1"
    card = huggingface_hub.ModelCard(hub.repos["me/CartPole-v1-dqn-seed1"]["README.md"].decode())
    (score,) = card.data.eval_results
    assert score.metric_value == "10.00 +/- 1.00" and score.dataset_name == "CartPole-v1"
    assert card.data.library_name == "cleanrl" and "reinforcement-learning" in card.data.tags
    assert "| 2 | 10.00 | 1.00 | 9.00 to 11.00 | 9, 11 |" in card.text
    versions = json.loads((trained / "provenance.json").read_text())["versions"]
    assert '"gamma": 0.97' in card.text and f"| versions | {versions} |" in card.text and "torch" in versions
    command = re.search("python cleanrl/dqn.py (.*)", card.text)[1]
    assert command == (
        "--env-id CartPole-v1 --seed 1 --no-cuda --save-model --total-timesteps 600 --buffer-size 500 --gamma 0.97 "
        "--learning-starts 500"
    )


def test_a_model_that_is_older_than_its_run_is_uploaded_on_request_only(hub, trained, tmp_path):
    older = shutil.copytree(trained, tmp_path / "older")
    args = json.loads((older / "args.json").read_text())
    (older / "args.json").write_text(json.dumps(args | {"total_timesteps": 9000, "gamma": 0.5}))
    note_step(older, 9000)
    with pytest.raises(SystemExit) as stop:
        main(older)
    message = "cannot upload: the model was trained to step 600, but the run has gone on to step 9000 (for a newer"
    assert str(stop.value).startswith(message) and "--allow-stale" in str(stop.value) and "\n" not in str(stop.value)
    assert not hub.repos
    main(older, allow_stale=True)
    files = hub.repos["me/CartPole-v1-dqn-seed1"]
    card = files["README.md"].decode()
    assert "seed 1, to step 600. Its run has gone on to step 9000 since." in card
    # the arguments are those that the model was trained with
    assert "--total-timesteps 600 " in card and '"gamma": 0.97' in card
    assert json.loads(files["args.json"])["gamma"] == 0.97
    assert json.loads(files["evaluation.json"])["global_step"] == 600


def test_the_card_says_where_a_run_was_resumed_and_with_what(trained, tmp_path):
    run_dir = shutil.copytree(trained, tmp_path / "resumed")
    facts = json.loads((run_dir / "provenance.json").read_text())
    first = {"from_step": 0, "args": {"seed": 1, "gamma": 0.97}}
    facts["sessions"] = [
        first,
        {"from_step": 200, "args": {"gamma": 0.9, "num_envs": 2}},
        {"from_step": 400, "args": {}},
    ]
    (run_dir / "provenance.json").write_text(json.dumps(facts))
    origin = trained_with(run_dir)
    assert origin["resumed at step 200"] == "gamma: 0.9, num_envs: 2"
    assert origin["resumed at step 400"] == "with the same arguments" and "resumed at step 0" not in origin


def test_a_film_of_an_older_model_is_not_uploaded(hub, trained, tmp_path):
    run_dir = shutil.copytree(trained, tmp_path / "filmed")
    film = run_dir / "evaluation" / "videos" / "rl-video-episode-0.mp4"
    film.parent.mkdir(parents=True)
    film.write_bytes(b"a film")
    push_to_hub(run_dir, result=RESULT)
    assert hub.repos["me/CartPole-v1-dqn-seed1"]["replay.mp4"] == b"a film"
    saved = (run_dir / "dqn.safetensors").stat().st_mtime
    os.utime(film, (saved - 100, saved - 100))
    push_to_hub(run_dir, result=RESULT)
    assert "replay.mp4" not in hub.repos["me/CartPole-v1-dqn-seed1"]


def test_episodes_that_were_cut_off_are_counted_on_the_card_and_in_the_claim(hub, trained, capsys):
    push_to_hub(trained, result=Evaluation([9.0, 50.0], [9, 50], num_cut_off=1, max_episode_steps=50))
    assert "| 9, 50 (1 cut off) |" in hub.repos["me/CartPole-v1-dqn-seed1"]["README.md"].decode()
    play(*HERE, "--eval-episodes", "1")
    claimed = "2 episodes (1 cut off after 50 steps), trained to step 600\n"
    assert claimed in capsys.readouterr().out


@pytest.mark.slow
def test_the_command_on_the_card_trains_the_same_weights(hub, trained, tmp_path):
    push_to_hub(trained, result=RESULT)
    command = re.search("python (cleanrl/.*)", hub.repos["me/CartPole-v1-dqn-seed1"]["README.md"].decode())[1]
    again = Runner(tmp_path).train(*command.split()[1:], script=ROOT / command.split()[0])
    assert (again / "dqn.safetensors").read_bytes() == (trained / "dqn.safetensors").read_bytes()


def test_pushing_again_replaces_everything(hub, trained):
    push_to_hub(trained, entity="team", result=RESULT)
    hub.repos["team/CartPole-v1-dqn-seed1"]["old.bin"] = b"of an earlier version"
    push_to_hub(trained, entity="team", result=Evaluation([5.0], [5]))
    files = hub.repos["team/CartPole-v1-dqn-seed1"]
    assert "old.bin" not in files and json.loads(files["evaluation.json"])["mean"] == 5


def test_neither_the_token_nor_the_checkpoint_is_uploaded(hub, trained):
    (trained / "checkpoint.pt").write_bytes(b"a pickle")
    push_to_hub(trained, result=RESULT)
    for files in hub.repos.values():
        assert "checkpoint.pt" not in files and not any(TOKEN.encode() in data for data in files.values())
    for path in trained.rglob("*"):
        assert path.is_dir() or TOKEN.encode() not in path.read_bytes()


@pytest.mark.parametrize(
    "env_id, name",
    [
        ("CartPole-v1", "CartPole-v1-ppo-seed1"),
        ("ALE/Pong-v5", "ALE_Pong-v5-ppo-seed1"),
        ("my_package:My--Env..-v0", "my_package_My_Env_-v0-ppo-seed1"),
    ],
)
def test_every_environment_has_a_valid_repository_name(env_id, name):
    assert repository("me", env_id, "ppo", 1) == f"me/{name}"
    validate_repo_id(f"me/{name}")


def test_a_name_that_is_too_long_is_refused():
    with pytest.raises(HubError, match="shorter --exp-name"):
        repository("me", "CartPole-v1", "x" * 90, 1)


class Hostile:
    """Unpickling it leaves a file behind."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def test_a_pickle_is_refused(hub, tmp_path, monkeypatch):
    """As the published CleanRL uploads them."""
    marker = tmp_path / "executed"
    data = pickle.dumps(Hostile(marker))
    pickle.loads(data)
    marker.rmdir()  # the attack works on those who let it
    hub.repos["me/CartPole-v1-dqn-seed1"] = {"dqn.cleanrl_model": data, "dqn.py": b"", "README.md": b""}
    with pytest.raises(SystemExit, match="dqn.cleanrl_model is a pickle, which can run any code when loaded: refused"):
        play(*HERE)
    assert not marker.exists() and not any("resolve" in x and "model" in x.split("/")[-1] for x in hub.requests)


def test_a_pickle_under_a_false_name_is_refused(hub, trained, tmp_path):
    push_to_hub(trained, result=RESULT)
    hub.repos["me/CartPole-v1-dqn-seed1"]["dqn.safetensors"] = pickle.dumps(Hostile(tmp_path / "executed"))
    with pytest.raises(SystemExit, match="dqn.safetensors does not load"):
        play(*HERE)
    assert not (tmp_path / "executed").exists()


def test_downloaded_source_is_shown_and_never_run(hub, trained, tmp_path, capsys):
    push_to_hub(trained, result=RESULT)
    source = hub.repos["me/CartPole-v1-dqn-seed1"]["dqn.py"].decode()
    evil = f"__import__('os').mkdir({str(tmp_path / 'executed')!r})\x1b[2J\n"
    hub.repos["me/CartPole-v1-dqn-seed1"]["dqn.py"] = (evil + source).encode()
    play(*HERE, "--eval-episodes", "1")
    assert "trained by another version of dqn.py (--show-source)" in capsys.readouterr().out
    play(*HERE, "--show-source")
    shown = capsys.readouterr().out
    assert "+__import__('os').mkdir(" in shown and "\x1b" not in shown  # nor does it command the terminal
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"exp_name": "../../evil"}, "no safetensors model|does not have"),
        ({"env_id": "evil_package:Env-v0"}, "was trained on 'evil_package:Env-v0'"),
        ({"env_id": 5}, "does not hold the arguments of a run"),
        ({"env_id": "Acrobot-v1"}, "was trained on 'Acrobot-v1'"),
    ],
)
def test_arguments_of_a_stranger_lead_nowhere(hub, trained, change, message):
    push_to_hub(trained, result=RESULT)
    files = hub.repos["me/CartPole-v1-dqn-seed1"]
    files["args.json"] = json.dumps(json.loads(files["args.json"]) | change).encode()
    del files["dqn.py"]
    with pytest.raises(SystemExit, match=message):
        play(*HERE)


def test_a_repository_by_its_name_does_not_choose_what_is_imported(hub, trained, capsys):
    push_to_hub(trained, result=RESULT)
    play("--hf-repository", "me/CartPole-v1-dqn-seed1", "--eval-episodes", "1")
    assert "policy:  me/CartPole-v1-dqn-seed1" in capsys.readouterr().out
    files = hub.repos["me/CartPole-v1-dqn-seed1"]
    files["args.json"] = files["args.json"].replace(b'"CartPole-v1"', b'"antigravity:CartPole-v1"')
    with pytest.raises(SystemExit, match="trained on 'antigravity:CartPole-v1': give that as --env-id to play it"):
        play("--hf-repository", "me/CartPole-v1-dqn-seed1", "--eval-episodes", "1")
    assert "antigravity" not in sys.modules


def test_an_algorithm_that_we_do_not_have_is_named(hub, trained):
    push_to_hub(trained, result=RESULT)
    files = hub.repos["me/CartPole-v1-dqn-seed1"]
    files["args.json"] = files["args.json"].replace(b'"dqn"', b'"os"')
    del files["dqn.py"]
    with pytest.raises(SystemExit, match="trained by os.py, which this version of CleanRL does not have"):
        play(*HERE)


def test_a_damaged_repository_is_explained(hub, trained):
    push_to_hub(trained, result=RESULT)
    files = hub.repos["me/CartPole-v1-dqn-seed1"]
    files["args.json"] = b"{"
    with pytest.raises(SystemExit, match="args.json of the repository does not hold the arguments of a run"):
        play(*HERE)
    del files["args.json"]
    with pytest.raises(SystemExit, match="has no safetensors model with args.json"):
        play(*HERE)


def test_what_is_not_there_or_not_allowed_takes_one_line(hub, trained, monkeypatch):
    with pytest.raises(SystemExit, match="me/CartPole-v1-dqn-seed1: no such repository, or it is private"):
        play(*HERE)
    push_to_hub(trained, result=RESULT)
    hub.private.add("me/CartPole-v1-dqn-seed1")
    play(*HERE, "--eval-episodes", "1")  # our token may
    hub.repos["me/CartPole-v1-dqn-seed3"] = hub.repos["me/CartPole-v1-dqn-seed1"]
    hub.gated.add("me/CartPole-v1-dqn-seed3")
    with pytest.raises(SystemExit, match="access is restricted; ask for it on the repository's page"):
        play(*HERE, "--seed", "3")
    with pytest.raises(HubError, match="upload to other/CartPole-v1-dqn-seed1: your token may not do that"):
        push_to_hub(trained, "other", RESULT)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(HubError, match="the hub does not accept your token; log in again: hf auth login"):
        push_to_hub(trained, result=RESULT)
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(SystemExit, match="no such repository, or it is private"):
        play(*HERE, "--seed", "2")
    with pytest.raises(HubError, match="no token; make one at huggingface.co/settings/tokens, then: hf auth login"):
        push_to_hub(trained, result=RESULT)


def test_without_network_what_was_pulled_before_still_plays(hub, trained, monkeypatch, capsys):
    push_to_hub(trained, result=RESULT)
    pull_from_hub("me/CartPole-v1-dqn-seed1")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    play(*HERE, "--eval-episodes", "1")
    assert "claimed: mean return 10.00" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="cannot reach the hub; is there a network?"):
        play(*HERE, "--seed", "2")
    with pytest.raises(HubError, match="cannot reach the hub; is there a network?"):
        push_to_hub(trained, result=RESULT)


def test_whether_an_upload_will_work_is_known_before_the_training(hub, monkeypatch):
    args = types.SimpleNamespace(save_model=True, hf_entity="", env_id="CartPole-v1", exp_name="dqn", seed=1)
    check_upload(args)
    args.hf_entity = "stranger"
    with pytest.raises(SystemExit, match="--hf-entity stranger: your token may upload to me, team"):
        check_upload(args)
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(SystemExit, match="--upload-model: no token.*train with --save-model alone and upload later"):
        check_upload(args)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(SystemExit, match=r'pip install "cleanrl\[hub\]"'):
        check_upload(args)
    args.save_model = False
    with pytest.raises(SystemExit, match="--upload-model needs --save-model"):
        check_upload(args)


def test_a_run_without_a_model_cannot_be_pushed(hub, trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "run" / "dqn.safetensors").unlink()
    command = [sys.executable, "-m", "cleanrl_utils.huggingface", tmp_path / "run"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode and re.fullmatch("cannot upload: .* has no model: train with --save-model.*\n", done.stderr)
