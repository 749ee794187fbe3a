"""A released file is replayed only where that was proven to give the same bits: over a whole short training."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from conftest import ROOT, Runner

from cleanrl_utils import accelerate as acceleration
from cleanrl_utils import lineage
from cleanrl_utils.accelerate import proofs
from cleanrl_utils.accelerate.proofs import PROVING, ProofError

RELEASED = sorted(path for path in (ROOT / "cleanrl").glob("*.py") if "import torch" in path.read_text())
VERSION = torch.__version__.partition("+")[0]
files = pytest.mark.parametrize("script", RELEASED, ids=lambda script: script.stem)
# One of each kind is trained by default, the others with `-m slow`: a file takes ten seconds.
KINDS = {"ppo", "ppo_continuous_action", "ppo_atari", "ppo_atari_lstm", "ppo_trxl", "pqn", "dqn", "dqn_atari", "c51"}
KINDS |= {"ppo_atari_envpool", "sac_continuous_action"}
some_files = pytest.mark.parametrize(
    "script",
    [pytest.param(x, marks=[] if x.stem in KINDS else pytest.mark.slow) for x in RELEASED],
    ids=lambda script: script.stem,
)


@files
def test_page_does_not_say_that_a_file_proven_on_a_gpu_was_never_run_on_one(script):
    records = json.loads((ROOT / "cleanrl_utils" / "accelerate" / "proofs.json").read_text())
    page = (ROOT / "docs" / "rl-algorithms" / f"{script.stem}.md").read_text()
    if any(record["file"] == script.name and record["device"] == "cuda" for record in records):
        assert "The file has not been run on a GPU" not in " ".join(page.split())


def skip_without_packages(script: Path) -> None:
    packages = []
    if "atari" in script.stem:
        packages = ["ale_py", "cv2", "stable_baselines3"]
    if "envpool" in script.stem:
        packages = ["envpool"]
    if "trxl" in script.stem:
        packages = ["minigrid"]
    if "procgen" in script.stem:
        pytest.importorskip("envpool.procgen.procgen_envpool", reason="needs libqt5gui5", exc_type=ImportError)
    if "pettingzoo" in script.stem:
        packages = ["ale_py", "cv2", "pettingzoo", "multi_agent_ale_py"]
    if "continuous" in script.stem:
        packages = ["mujoco"]
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")


@pytest.fixture
def own_files(tmp_path, monkeypatch):
    """Proofs of these tests are kept in a folder of theirs."""
    monkeypatch.setattr(proofs, "PROOFS", tmp_path / "package" / "proofs.json")
    monkeypatch.setattr(proofs, "OWN_PROOFS", tmp_path / "home" / "proofs.json")
    monkeypatch.delenv(PROVING, raising=False)
    (tmp_path / "package").mkdir()
    return proofs


@pytest.fixture
def fast_start(monkeypatch):
    """Starts the trainings of a proof by the zygote of the tests, which saves the imports."""

    class FastStart:
        @staticmethod
        def run(command, cwd, env, **settings):
            monkeypatch.setenv(PROVING, env[PROVING])
            result = Runner(cwd).run(*command[1:], check=False)
            monkeypatch.delenv(PROVING)
            return result

    monkeypatch.setattr(proofs, "subprocess", FastStart)


# Released files


def check_proof(script: Path, device: str) -> None:
    replayed = proofs.prove_one(script, device)["replayed"]
    assert replayed.keys() == {"get_action", "update"}
    assert replayed["get_action"] > 0
    if script.stem == "ppo_atari_multigpu":  # its processes send each other messages, which cannot be replayed
        assert replayed["update"] == 0
    else:
        assert replayed["update"] > 0


@some_files
def test_replayed_training_equals_the_training_as_written(script, fast_start):
    skip_without_packages(script)
    check_proof(script, "cpu")


OFF_POLICY = "--learning-starts 200 --buffer-size 1000 --env-id Pendulum-v1"
OTHER_FLAGS = {
    "ppo": "--total-timesteps 2048 --no-norm-adv --no-clip-vloss --target-kl 0.005 --ent-coef 0 --max-grad-norm 0.01",
    "ppo_continuous_action": "--total-timesteps 1024 --num-steps 256 --num-minibatches 4 --ent-coef 0.01 "
    "--no-clip-vloss --env-id Pendulum-v1",
    "dqn": "--total-timesteps 800 --learning-starts 300 --buffer-size 500 --tau 0.5 --target-network-frequency 7 "
    "--num-envs 2",
    "c51": "--total-timesteps 800 --learning-starts 300 --buffer-size 500 --n-atoms 51 --v-min -10 --v-max 300",
    "pqn": "--total-timesteps 2048 --q-lambda 0.3 --num-minibatches 2",
    "td3_continuous_action": f"--total-timesteps 400 {OFF_POLICY} --policy-noise 0.5 --num-envs 2",
    "sac_continuous_action": f"--total-timesteps 400 {OFF_POLICY} --no-autotune --alpha 0.1",
}


@pytest.mark.parametrize("name", OTHER_FLAGS)
def test_replayed_training_equals_the_training_as_written_with_flags_that_are_not_in_the_proof(
    name, fast_start, monkeypatch
):
    """A proof holds for the text of a file, so for all its flags: branches that the proven training never took."""
    script = ROOT / "cleanrl" / f"{name}.py"
    skip_without_packages(script)
    monkeypatch.setattr(proofs, "short_flags", lambda _: [*OTHER_FLAGS[name].split(), "--checkpoint-frequency", "1000"])
    check_proof(script, "cpu")


@pytest.mark.gpu
@files
def test_replayed_training_on_a_gpu_equals_the_training_as_written(script):
    skip_without_packages(script)
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    check_proof(script, "cuda")


@pytest.mark.gpu
@files
def test_compiled_training_on_a_gpu_runs_to_its_end(script, tmp_path):
    skip_without_packages(script)
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    command = [sys.executable, str(script), *proofs.short_flags(script), "--compile"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=580)
    if script.stem.endswith("_lstm"):  # which refuses: Dynamo would unroll its loop over the steps
        assert result.returncode == 1 and "--compile" in result.stderr
        return
    assert result.returncode == 0, result.stderr
    assert next(tmp_path.glob("runs/*/checkpoint.pt"))


def test_every_released_file_has_a_proof_for_the_installed_pytorch():
    shipped = json.loads((ROOT / "cleanrl_utils" / "accelerate" / "proofs.json").read_text())
    proven = {(proof["sha256"], proof["device"]) for proof in shipped if proof["torch"] == VERSION}
    missing = [script.name for script in RELEASED if (proofs.digest_of(script), "cpu") not in proven]
    assert not missing, "python -m cleanrl_utils.lineage prove"


# What counts as proven


def proof_of(script: Path, **changes) -> dict:
    proof = {"file": script.name, "sha256": proofs.digest_of(script), "torch": VERSION, "device": "cpu"}
    return proof | {"replayed": {"act": 1, "update": 1}, "digest": "0"} | changes


@pytest.fixture
def script(tmp_path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text("x = 1\n")
    return path


def test_a_copy_under_another_name_is_proven_and_an_edited_copy_is_not(own_files, script, monkeypatch):
    proofs.keep(proof_of(script))
    assert proofs.why_not_proven(script, "cpu") == ""
    copy = script.with_name("copy.py")
    copy.write_bytes(script.read_bytes())
    assert proofs.why_not_proven(copy, "cpu") == ""
    monkeypatch.chdir(script.parent)
    for edited in ("x = 2\n", "x = 1\n\n", "x = 1  # a comment\n"):
        copy.write_text(edited)
        line = (
            "copy.py runs as written, as it is not a released file; --accelerate on replays it, faster and with audits"
        )
        assert proofs.why_not_proven(copy, "cpu") == line


@pytest.mark.parametrize("changes", [{"torch": "1.0.0"}, {"device": "cuda"}], ids=["PyTorch", "device"])
def test_a_proof_for_another_pytorch_or_device_does_not_count(own_files, script, changes, monkeypatch):
    proofs.keep(proof_of(script, **changes))
    monkeypatch.chdir(script.parent)
    assert proofs.why_not_proven(script, "cpu") == (
        f"mine.py runs as written: its replay is not proven for PyTorch {VERSION} on cpu yet "
        "(python -m cleanrl_utils.lineage prove mine.py)"
    )
    proofs.keep(proof_of(script))
    assert proofs.why_not_proven(script, "cpu") == ""


def test_a_proof_of_the_users_own_machine_counts(own_files, script):
    proofs.OWN_PROOFS.parent.mkdir()
    proofs.OWN_PROOFS.write_text(json.dumps([proof_of(script)]))
    assert proofs.why_not_proven(script, "cpu") == ""


def test_while_it_is_being_proven_a_script_is_replayed(own_files, script, monkeypatch):
    assert proofs.why_not_proven(script, "cpu")
    monkeypatch.setenv(PROVING, "somewhere.json")
    assert proofs.why_not_proven(script, "cpu") == ""


def test_missing_proofs_are_those_for_the_installed_pytorch(own_files, script):
    other = script.with_name("other.py")
    other.write_text("y = 1\n")
    proofs.keep(proof_of(script, device="cuda"))  # on any kind of device
    proofs.keep(proof_of(other, torch="1.0.0"))
    assert proofs.missing([script, other]) == ["other.py"]


# Keeping proofs


def test_a_new_proof_replaces_the_old_one_of_the_same_file_pytorch_and_device(own_files, script):
    old = proof_of(script)
    others = [proof_of(script, device="cuda"), proof_of(script, torch="1.0.0"), proof_of(script, file="another.py")]
    for proof in (old, *others):
        proofs.keep(proof)
    script.write_text("x = 3\n")
    proofs.keep(proof_of(script))
    kept = json.loads(proofs.PROOFS.read_text())
    assert len(kept) == 4
    assert old not in kept and proof_of(script) in kept
    assert all(proof in kept for proof in others)
    assert kept == sorted(kept, key=lambda x: (x["file"], x["torch"], x["device"]))


def test_proofs_of_a_package_that_is_read_only_are_kept_in_the_users_folder(own_files, script, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    proofs.keep(proof_of(script))
    assert not proofs.PROOFS.exists()
    assert json.loads(proofs.OWN_PROOFS.read_text()) == [proof_of(script)]
    assert proofs.why_not_proven(script, "cpu") == ""


# Proving

TRAINING = """
import json, os, sys, torch
mode = sys.argv[sys.argv.index("--accelerate") + 1]
assert "--no-cuda" in sys.argv
os.makedirs("runs/a")
tensors = {tensors}
torch.save({{"tensors": tensors, "args": mode}}, "runs/a/checkpoint.pt")
if mode == "auto":
    with open(os.environ["CLEANRL_PROVING"], "w") as file:
        json.dump({{"act": 1, "update": 2}}, file)
"""


def test_equal_trainings_are_a_proof(own_files, fast_start, script, capsys):
    script.write_text(TRAINING.format(tensors="[torch.arange(3.0), torch.nn.Parameter(torch.ones(2))]"))
    assert proofs.prove([script], "cpu") == 0
    (proof,) = json.loads(proofs.PROOFS.read_text())
    assert proof["sha256"] == proofs.digest_of(script) and len(proof["digest"]) == 64
    assert (proof["torch"], proof["device"]) == (VERSION, "cpu")
    line = capsys.readouterr().out
    assert line.startswith(f"mine.py: proven on cpu with PyTorch {VERSION}, replayed: ")
    assert "act" in line and "update" in line
    assert proofs.why_not_proven(script, "cpu") == ""


@pytest.mark.parametrize(
    "tensors, reason",
    [
        ("[torch.zeros(2), torch.tensor([1.0, 1.0 + 1e-7 * (mode == 'auto')])]", "tensor 1 of 2"),
        ("[torch.tensor(0.0 if mode == 'auto' else -0.0)]", "tensor 0 of 1"),
        ("[torch.zeros(2, dtype=torch.int32 if mode == 'auto' else torch.float32)]", "tensor 0 of 1"),
        ("[torch.zeros(2)] * (1 + (mode == 'auto'))", "1 tensors as written, 2 replayed"),
        ("sys.exit('no such environment')", "no such environment"),
    ],
)
def test_a_difference_or_a_failure_is_no_proof(own_files, fast_start, script, capsys, tensors, reason):
    script.write_text(TRAINING.format(tensors=tensors))
    assert proofs.prove([script], "cpu") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("mine.py: not proven on cpu: ") and reason in line
    assert not proofs.PROOFS.exists()
    with pytest.raises(ProofError):
        proofs.prove_one(script, "cpu")


def test_nan_equals_itself_in_a_proof(own_files, fast_start, script):
    script.write_text(TRAINING.format(tensors="[torch.tensor(float('nan'))]"))
    assert proofs.prove([script], "cpu") == 0


def test_one_failure_does_not_keep_the_others_from_being_proven(own_files, fast_start, script):
    bad = script.with_name("bad.py")
    bad.write_text("raise SystemExit(1)")
    script.write_text(TRAINING.format(tensors="[torch.zeros(2)]"))
    assert proofs.prove([bad, script], "cpu") == 1
    assert [proof["file"] for proof in json.loads(proofs.PROOFS.read_text())] == ["mine.py"]


def test_report_counts_the_replays_of_each_function(tmp_path, monkeypatch):
    replayed = acceleration.Replayed(lambda x: x + 1, {"unused": torch.zeros(1)}, audited=False)
    replayed.__name__ = "act"
    as_written = acceleration.Replayed(lambda x: x * x.sum().item(), {"unused": torch.zeros(1)}, audited=False)
    as_written.__name__ = "update"
    for _ in range(6):
        replayed(torch.ones(2))
        replayed(torch.ones(3))
        as_written(torch.ones(2))
    monkeypatch.delenv(PROVING, raising=False)
    monkeypatch.chdir(tmp_path)
    proofs.report([replayed, as_written])
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv(PROVING, str(tmp_path / "replayed.json"))
    proofs.report([replayed, as_written])
    assert json.loads((tmp_path / "replayed.json").read_text()) == {"act": 2, "update": 0}


def test_the_longest_beginning_of_a_name_chooses_the_short_training():
    flags = [
        proofs.short_flags(Path(name)) for name in ("ppo.py", "ppo_atari_lstm.py", "ppo_atari_multigpu.py", "mine.py")
    ]
    assert len({tuple(x) for x in flags[:3]}) == 3
    assert "--local-num-envs" in flags[2]
    assert flags[3] == flags[0]


def test_what_cannot_be_proven_is_said_in_a_line(own_files, capsys):
    package = Path(proofs.__file__).parents[2] / "cleanrl"
    assert proofs.prove([package / "__init__.py"], "cpu") == 1
    assert "__init__.py: not proven on cpu: it trains nothing" in capsys.readouterr().err


def test_jax_files_need_no_proof(capsys):
    assert lineage.main(["prove", "dqn_jax"]) == 0
    assert "dqn_jax.py: needs no proof" in capsys.readouterr().out
