"""Prove that a script's replay gives the same bits as the script itself, and remember the proof.

    python -m cleanrl_utils.lineage prove [FILE ...]     # all files of cleanrl/ by default

A proof is a whole short training, once with `--accelerate off` and once replayed, after which every tensor of the two
checkpoints is equal to the bit: parameters, buffers, optimizer and random states. It holds for the very bytes of the
script, a version of PyTorch and a kind of device. Proofs of the released files are in proofs.json beside this module.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch.utils._pytree import tree_flatten

PROOFS = Path(__file__).with_name("proofs.json")
OWN_PROOFS = Path.home() / ".cache" / "cleanrl" / "proofs.json"  # where the installed package is read-only
PROVING = "CLEANRL_PROVING"  # names the file into which a replayed training writes what it has replayed

# What makes a training short, by the beginning of the file's name; the longest beginning that fits counts.
SHORT = {
    "ppo": "--total-timesteps 4096",
    "ppo_continuous_action": "--total-timesteps 2048 --num-steps 256 --num-minibatches 4",
    "rpo_continuous_action": "--total-timesteps 2048 --num-steps 256 --num-minibatches 4",
    "ppo_atari": "--total-timesteps 384 --num-envs 4 --num-steps 16 --num-minibatches 2",
    "ppo_atari_multigpu": "--total-timesteps 384 --local-num-envs 4 --num-steps 16 --num-minibatches 2",
    "ppo_pettingzoo": "--total-timesteps 384 --num-envs 4 --num-steps 16 --num-minibatches 2",
    "ppo_procgen": "--total-timesteps 384 --num-envs 4 --num-steps 16 --num-minibatches 2",
    "ppg_procgen": "--total-timesteps 384 --num-envs 4 --num-steps 16 --num-minibatches 2 "
    "--n-iteration 3 --e-auxiliary 1",
    "ppo_trxl": "--total-timesteps 1024 --num-envs 4 --num-steps 32 --num-minibatches 2 --trxl-dim 64",
    "ppo_rnd_envpool": "--total-timesteps 384 --num-envs 4 --num-steps 16 --num-minibatches 2 "
    "--num-iterations-obs-norm-init 2",
    "pqn": "--total-timesteps 4096",
    "pqn_atari": "--total-timesteps 384 --num-envs 4 --num-steps 16 --num-minibatches 2",
    "qdagger_dqn_atari_impalacnn": "--total-timesteps 100 --learning-starts 20 --buffer-size 1000 --teacher-steps 100 "
    "--offline-steps 20 --teacher-eval-episodes 1 --target-network-frequency 10 --batch-size 8",
    "rainbow_atari": "--total-timesteps 240 --learning-starts 80 --buffer-size 1000 --target-network-frequency 50",
    "dqn": "--total-timesteps 1500 --learning-starts 300 --buffer-size 1000 --target-network-frequency 100",
    "dqn_atari": "--total-timesteps 400 --learning-starts 100 --buffer-size 1000 --target-network-frequency 50",
    "c51": "--total-timesteps 1500 --learning-starts 300 --buffer-size 1000 --target-network-frequency 100",
    "c51_atari": "--total-timesteps 400 --learning-starts 100 --buffer-size 1000 --target-network-frequency 50",
    "ddpg": "--total-timesteps 600 --learning-starts 200 --buffer-size 1000",
    "td3": "--total-timesteps 600 --learning-starts 200 --buffer-size 1000",
    "sac": "--total-timesteps 600 --learning-starts 200 --buffer-size 1000",
    "sac_atari": "--total-timesteps 180 --learning-starts 80 --buffer-size 1000 --target-network-frequency 50",
}


def digest_of(script: str | Path) -> str:
    return hashlib.sha256(Path(script).read_bytes()).hexdigest()


def version() -> str:
    return torch.__version__.partition("+")[0]


def read() -> list[dict]:
    """All proofs at hand, the shipped ones and the user's own."""
    return [proof for path in (PROOFS, OWN_PROOFS) if path.exists() for proof in json.loads(path.read_text())]


def why_not_proven(script: str | Path, device: str) -> str:
    """A line for the user that says why a script is not replayed, or nothing if it is."""
    if os.environ.get(PROVING):
        return ""
    known = [proof for proof in read() if proof["sha256"] == digest_of(script)]
    if any(proof["torch"] == version() and proof["device"] == device for proof in known):
        return ""
    name = os.path.relpath(script)
    if known:
        command = f"python -m cleanrl_utils.lineage prove {name}"
        return f"{name} runs as written: its replay is not proven for PyTorch {version()} on {device} yet ({command})"
    return f"{name} runs as written, as it is not a released file; --accelerate on replays it, faster and with audits"


def missing(scripts: list[Path]) -> list[str]:
    """The scripts without a proof on any kind of device for the installed PyTorch."""
    proven = {proof["sha256"] for proof in read() if proof["torch"] == version()}
    return [script.name for script in scripts if digest_of(script) not in proven]


def prove(scripts: list[Path], device: str | None = None) -> int:
    """Prove the scripts one after another, and keep the proofs; returns the exit code."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    failed = 0
    for script in scripts:
        try:
            proof = prove_one(script, device)
        except ProofError as error:
            failed += 1
            print(f"{script.name}: not proven on {device}: {error}", file=sys.stderr)
            continue
        keep(proof)
        functions = " and ".join(f"{name} ({count} kinds of inputs)" for name, count in proof["replayed"].items())
        print(f"{script.name}: proven on {device} with PyTorch {version()}, replayed: {functions or 'nothing'}")
    return 1 if failed else 0


class ProofError(Exception):
    """Why there is no proof, in a line."""


def prove_one(script: Path, device: str) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        written = train(script, device, "off", Path(folder, "off"))
        replayed = train(script, device, "auto", Path(folder, "auto"))
        functions = json.loads(Path(folder, "auto", "replayed.json").read_text())
    if len(written) != len(replayed):
        raise ProofError(f"{len(written)} tensors as written, {len(replayed)} replayed")
    for number, (a, b) in enumerate(zip(written, replayed)):
        if a.dtype != b.dtype or a.tobytes() != b.tobytes():
            raise ProofError(f"tensor {number} of {len(written)} in the checkpoint differs when it is replayed")
    digest = hashlib.sha256(b"".join(x.tobytes() for x in written)).hexdigest()
    return {
        "file": script.name,
        "sha256": digest_of(script),
        "torch": version(),
        "device": device,
        "replayed": functions,
        "digest": digest,
    }


def short_flags(script: Path) -> list[str]:
    """Flags for a training of some seconds, with a checkpoint at its end."""
    name = max((name for name in SHORT if script.stem.startswith(name)), key=len, default="ppo")
    flags = [*SHORT[name].split(), "--checkpoint-frequency", "100000"]
    if name.startswith("qdagger"):
        flags += ["--teacher-model-path", str(make_teacher())]
    return flags


def make_teacher() -> Path:
    """A teacher that has not learned anything: a proof is about bits, not about scores."""
    from gymnasium.spaces import Discrete
    from safetensors.torch import save_file

    from cleanrl.dqn_atari import QNetwork

    path = OWN_PROOFS.with_name("teacher.safetensors")
    path.parent.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        breakout = SimpleNamespace(single_action_space=Discrete(4))
        save_file(QNetwork(breakout).state_dict(), path)
    return path


def train(script: Path, device: str, accelerate: str, folder: Path) -> list[np.ndarray]:
    """Train for a short while; returns all tensors and arrays of the last checkpoint."""
    folder.mkdir()
    flags = [*short_flags(script), "--accelerate", accelerate]
    flags += ["--no-cuda"] if device == "cpu" else []
    environment = os.environ | {PROVING: str(folder / "replayed.json")}
    command = [sys.executable, str(script.resolve()), *flags]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if result.returncode:
        lines = f"exit code {result.returncode}\n{result.stdout}\n{result.stderr}".strip().splitlines()
        raise ProofError(lines[-1])
    checkpoints = list(folder.glob("runs/*/checkpoint.pt"))
    if not checkpoints:
        raise ProofError("it trains nothing, or saves no checkpoint that PyTorch can read")
    leaves = tree_flatten(torch.load(checkpoints[0], weights_only=False, map_location="cpu"))[0]
    leaves = [x.detach().numpy() if isinstance(x, torch.Tensor) else x for x in leaves]
    return [x for x in leaves if isinstance(x, np.ndarray)]


def keep(proof: dict) -> None:
    """Add a proof to the file, in the place of older ones of the same script, version and kind of device."""
    path = PROOFS if os.access(PROOFS if PROOFS.exists() else PROOFS.parent, os.W_OK) else OWN_PROOFS
    path.parent.mkdir(parents=True, exist_ok=True)
    proofs = json.loads(path.read_text()) if path.exists() else []
    same = ("file", "torch", "device")
    proofs = [old for old in proofs if any(old[key] != proof[key] for key in same)] + [proof]
    proofs.sort(key=lambda x: [x[key] for key in same])
    path.write_text(json.dumps(proofs, indent=2) + "\n")


def report(replayed: list) -> None:
    """In a training for a proof: write down which functions were replayed, for how many kinds of inputs."""
    if path := os.environ.get(PROVING):
        counts = {x.__name__: sum(replay is not x.function for replay in x.replays.values()) for x in replayed}
        Path(path).write_text(json.dumps(counts))
