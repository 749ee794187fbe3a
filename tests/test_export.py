"""Export to ONNX: the same actions as the original, for every algorithm file, or no file at all."""

import importlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROOT, SHORT, Runner
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import save_file

onnxruntime = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
from cleanrl_utils import export as module  # noqa: E402
from cleanrl_utils import export_torch  # noqa: E402
from cleanrl_utils.evaluate import evaluate, load_run  # noqa: E402
from cleanrl_utils.export import ExportError, export  # noqa: E402
from cleanrl_utils.provenance import note_step  # noqa: E402

MODULES = ROOT / "tests" / "modules"

FILES = [path.stem for path in sorted((ROOT / "cleanrl").glob("*.py")) if "def load_policy" in path.read_text()]
TORCH = [name for name in FILES if "import torch" in (ROOT / "cleanrl" / f"{name}.py").read_text()]
JAX = [name for name in FILES if name not in TORCH]
SMALL = {"ppo", "ppo_continuous_action", "c51", "sac_continuous_action"}  # one of each kind; the others are slow
SMALL |= {"ppo_jax", "c51_jax"}


def make_run(folder: Path, name: str, env_id: str | None = None, metadata: dict | None = None) -> Path:
    """A run of an algorithm as if it had been trained: all its weights and statistics are other than at the start."""
    if "atari" in name:
        pytest.importorskip("ale_py", reason="the extra atari is not installed")
    if "envpool" in name:
        pytest.importorskip("envpool", reason="the extra envpool is not installed")
    if "procgen" in name:
        pytest.importorskip("envpool.procgen.procgen_envpool", reason="needs libqt5gui5", exc_type=ImportError)
    if "trxl" in name:
        pytest.importorskip("minigrid", reason="the extra memory is not installed")
    if "pettingzoo" in name:
        pytest.importorskip("multi_agent_ale_py", reason="the extra pettingzoo is not installed")
    if env_id is None:
        env_id = "Pendulum-v1" if "continuous" in name else "CartPole-v1"
        env_id = "Breakout-v5" if "envpool" in name else "BreakoutNoFrameskip-v4" if "atari" in name else env_id
        env_id = "Taxi-v4" if "mask" in name else env_id
        env_id = "pong_v3" if "pettingzoo" in name else env_id
        env_id = "starpilot" if "procgen" in name else env_id
        env_id = "MiniGrid-MemoryS7-v0" if "trxl" in name else env_id
        env_id = "inverted_pendulum/spring" if "mjx" in name else env_id
    algorithm = importlib.import_module(f"cleanrl.{name}")
    if name == "ppo_trxl":  # small, and its model file says how small
        small = algorithm.Args(env_id=env_id, trxl_dim=32, trxl_num_layers=2, trxl_memory_length=8)
        metadata = (metadata or {}) | {"args": json.dumps(vars(small)), "global_step": "0"}
    if name in JAX:
        save_arrays(make_arrays(algorithm, env_id), folder / f"{name}.safetensors", metadata)
    else:
        further = [small] if name == "ppo_trxl" else []
        save_file(make_tensors(algorithm, env_id, further), folder / f"{name}.safetensors", metadata)
    (folder / "args.json").write_text(json.dumps({"exp_name": name, "env_id": env_id, "seed": 1}))
    shutil.copy(ROOT / "cleanrl" / f"{name}.py", folder)
    return folder


def make_tensors(algorithm, env_id: str, further: list) -> dict:
    """A model of a script in PyTorch."""
    envs = algorithm.make_envs(env_id, 1, False, "")
    torch.manual_seed(2 if "pettingzoo" in algorithm.__name__ else 0)
    kinds = [("Actor", "actor."), ("Agent", ""), ("QNetwork", "")]
    kind, prefix = next((kind, prefix) for kind, prefix in kinds if hasattr(algorithm, kind))
    if hasattr(algorithm.Args, "n_atoms"):
        further = [torch.linspace(-1, 1, algorithm.Args().n_atoms)]
    state = getattr(algorithm, kind)(envs, *further).state_dict()
    envs.close()
    for key, x in state.items():
        if "weight" in key:  # large, so that what it does depends on what it sees
            x.copy_(torch.randn_like(x) * (2 / x[0].numel()) ** 0.5)
        elif key not in ("atoms", "low", "high", "action_scale", "action_bias"):
            x += 0.1 * torch.rand_like(x)
    return {prefix + key: x.contiguous() for key, x in state.items()}


def make_arrays(algorithm, env_id: str) -> dict:
    """A model of a script in JAX."""
    import jax
    from flax.traverse_util import flatten_dict

    envs = algorithm.make_envs(env_id, 1, False, "")
    obs, actions, key = envs.reset()[0], envs.single_action_space, jax.random.key(0)
    envs.close()
    further = {}
    if hasattr(algorithm, "Actor"):
        params = {"actor": algorithm.Actor(actions.low, actions.high).init(key, obs)}
    elif hasattr(algorithm, "QNetwork"):
        if hasattr(algorithm.Args, "n_atoms"):
            further["atoms"] = np.linspace(-1, 1, algorithm.Args().n_atoms, dtype=np.float32)
        params = algorithm.QNetwork(int(actions.n), *map(len, further.values())).init(key, obs)
    else:
        agent = algorithm.Agent(int(actions.n) if hasattr(actions, "n") else actions.shape[0])
        params = agent.init(key, obs, np.array([actions.sample()]), method="evaluate_actions")
        if hasattr(algorithm, "ObsStats"):
            further = {"obs_mean": obs[0].astype(np.float32), "obs_var": 2 + obs[0].astype(np.float32)}
    rng, arrays = np.random.default_rng(4), {}
    for name, x in flatten_dict(params, sep=".").items():
        width = np.prod(x.shape[:-1]) if x.ndim > 1 else 100
        arrays[name] = (rng.normal(size=x.shape) * (2 / width) ** 0.5).astype(np.float32)
    return arrays | further


def session_of(path: Path):
    return onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", [x if x in SMALL else pytest.param(x, marks=pytest.mark.slow) for x in FILES])
def test_the_exported_policy_acts_like_the_original(name, tmp_path):
    """Compared here once more, by other means than the exporter's own check."""
    run_dir = make_run(tmp_path, name)
    path, description = export(run_dir)
    assert path == tmp_path / f"{name}.onnx" and "largest difference" in description
    session = session_of(path)
    args, algorithm, model_path = load_run(run_dir)
    envs = algorithm.make_envs(args["env_id"], 2, False, "")
    policy = algorithm.load_policy(model_path, envs)
    space = getattr(envs, "single_observation_space", None) or envs.observation_space
    rng, seen = np.random.default_rng(1), []
    kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(uint8)": np.uint8}
    feed = {x.name: np.zeros([2 if size == "batch" else size for size in x.shape], kinds[x.type])
            for x in session.get_inputs()}  # fmt: skip
    names = [x.name for x in session.get_outputs()]
    for _ in range(20):
        if space.dtype == np.uint8 and len(space.shape) == 1:
            obs = rng.integers(0, 10, (2, *space.shape), dtype=np.uint8)
        elif space.dtype == np.uint8:  # coarse patterns: noise looks all the same
            coarse = rng.integers(0, 256, (2, space.shape[0], 3, 3), dtype=np.uint8)
            obs = coarse.repeat(28, axis=2).repeat(28, axis=3)[:, :, : space.shape[1], : space.shape[2]]
        else:
            obs = rng.normal(size=(2, *space.shape)).astype(np.float32 if space.dtype.kind == "f" else space.dtype)
        outcome = dict(zip(names, session.run(None, feed | {"obs": obs}), strict=True))
        expected = policy(obs)
        np.testing.assert_allclose(outcome["action"], expected, rtol=1e-5, atol=1e-5)
        if "scores" in names:
            np.testing.assert_array_equal(outcome["scores"].argmax(-1), outcome["action"])
        seen.append(expected)
        memories = [name for name in names if name.startswith("next_")]
        feed |= {name.removeprefix("next_"): outcome[name] for name in memories}  # they go on
    envs.close()
    assert len(np.unique(np.concatenate(seen), axis=0)) > 1, "a policy that always does the same proves nothing"


def test_every_file_with_a_policy_is_tested():
    assert len(TORCH) >= 26 and len(JAX) >= 12 and set(FILES) >= SMALL


@pytest.mark.slow
def test_a_trained_policy_scores_the_same_without_pytorch(tmp_path):
    """Observation statistics included: Pendulum's are far from zero mean and unit variance."""
    script = ROOT / "cleanrl" / "ppo_continuous_action.py"
    run_dir = Runner(tmp_path).train(*SHORT, "--env-id", "Pendulum-v1", "--save-model", script=script)
    done = Runner(tmp_path).run("-m", "cleanrl_utils.export", run_dir, "--output", "policy.onnx")
    assert "obs (float) ['batch', 3] -> action (float) ['batch', 1]" in done.stdout
    session = session_of(tmp_path / "policy.onnx")
    about = session.get_modelmeta().custom_metadata_map
    assert about["env_id"] == "Pendulum-v1" and json.loads(about["args"])["seed"] == 1
    args, algorithm, model_path = load_run(run_dir)

    def load_onnx(*_):
        return lambda obs: session.run(["action"], {"obs": obs.astype(np.float32)})[0]

    flags = {"episodes": 3, "seed": 7, "device": "cpu"}
    original = evaluate(model_path, args["env_id"], algorithm.make_envs, algorithm.load_policy, **flags)
    exported = evaluate("", args["env_id"], algorithm.make_envs, load_onnx, **flags)
    np.testing.assert_allclose(exported.returns, original.returns, rtol=1e-3)


def test_a_policy_that_differs_is_not_written(tmp_path, monkeypatch):
    run_dir = make_run(tmp_path, "ppo_continuous_action")
    trace = export_torch.trace

    def spoiled(*args):
        model, memories = trace(*args)
        for x in model.graph.initializer:
            if x.raw_data and x.data_type == 1:
                values = np.frombuffer(x.raw_data, np.float32)
                x.raw_data = (values * np.float32(1.001)).tobytes()
        return model, memories

    monkeypatch.setattr(export_torch, "trace", spoiled)
    with pytest.raises(ExportError, match="differs from the original in its actions by .*: not written"):
        export(run_dir)
    assert not list(tmp_path.glob("*.onnx*"))


def test_model_that_is_older_than_its_run_is_exported_on_request_only(tmp_path):
    trained_with = {"exp_name": "ppo", "learning_rate": 0.5}
    run_dir = make_run(tmp_path, "ppo", metadata={"global_step": "1280", "args": json.dumps(trained_with)})
    note_step(run_dir, 2560)
    message = "trained to step 1280, but the run has gone on to step 2560 .*--allow-stale"
    with pytest.raises(SystemExit, match=message) as stop:
        module.main(run_dir)
    assert "\n" not in str(stop.value) and not list(tmp_path.glob("*.onnx*"))
    module.main(run_dir, allow_stale=True)
    about = session_of(tmp_path / "ppo.onnx").get_modelmeta().custom_metadata_map
    assert about["global_step"] == "1280" and json.loads(about["args"]) == trained_with  # and not those of the run
    note_step(run_dir, 1280)
    module.main(run_dir)


def test_policy_for_actions_that_are_counted_from_1_counts_them_from_0(tmp_path, monkeypatch):
    """As the network does; the wrapper in `make_env` adds the rest."""
    monkeypatch.syspath_prepend(MODULES)
    run_dir = make_run(tmp_path, "ppo", env_id="from_one:FromOne-v0")
    path, _ = export(run_dir)
    actions, scores = session_of(path).run(["action", "scores"], {"obs": np.eye(3, dtype=np.float32)})
    assert scores.shape == (3, 3) and set(actions) <= {0, 1, 2}


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda run: (run / "ppo.safetensors").unlink(), "has no model: train with --save-model"),
        (lambda run: (run / "ppo.safetensors").write_bytes(b"damaged"), "cannot export: .*"),
        (lambda run: (run / "args.json").unlink(), "is not a run folder"),
        (lambda run: spoil_source(run / "ppo.py"), "no function around one PyTorch network with get_action"),
    ],
)
def test_problems_take_one_line(tmp_path, change, message):
    run_dir = make_run(tmp_path, "ppo")
    change(run_dir)
    with pytest.raises(SystemExit, match=message) as stop:
        module.main(run_dir)
    assert "\n" not in str(stop.value)


def spoil_source(path: Path) -> None:
    """A load_policy that is not made like ours."""
    text = path.read_text()
    changed = text.replace("    return policy\n", "    return policy.__call__\n")
    assert changed != text
    path.write_text(changed)


def test_without_the_extra_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(module.sys.modules, "onnxruntime", None)
    with pytest.raises(SystemExit, match=r'pip install "cleanrl\[onnx\]"'):
        module.main(tmp_path)


def test_an_operation_that_has_no_translation_is_named(tmp_path):
    """An edited network in JAX: one line, and nothing is written."""
    run_dir = make_run(tmp_path, "ppo_jax")
    script = tmp_path / "ppo_jax.py"
    changed = script.read_text().replace(
        "return agent.apply(params, x, noise,", "return agent.apply(params, jnp.sort(x), noise,"
    )
    assert changed != script.read_text()
    script.write_text(changed)
    with pytest.raises(SystemExit, match="cannot export: JAX's operation sort has no translation") as stop:
        module.main(run_dir)
    assert "\n" not in str(stop.value) and not list(tmp_path.glob("*.onnx*"))


def test_operations_of_other_networks_are_translated_too(tmp_path):
    """Layer normalization, GELU, softmax, powers, a choice between two, integers among the observations."""
    jax = pytest.importorskip("jax", reason="the extra jax is not installed")
    from cleanrl_utils import export_jax

    nn = pytest.importorskip("flax.linen")
    weights = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)

    @jax.jit
    def act(x):
        x = nn.LayerNorm().bind({"params": {"scale": np.ones(5), "bias": np.zeros(5)}})(x)
        x = nn.gelu(x) ** 3 + nn.softmax(x, axis=-1)
        x = jax.numpy.where(x > 0.5, x, -nn.sigmoid(x))
        return jax.numpy.concatenate([nn.swish(x) @ weights, abs(x)[:, None].sum(1) ** 2], axis=-1).argmax(-1)

    def policy(obs):
        return np.asarray(act(obs.astype(np.float32)))

    obs = np.random.default_rng(1).integers(-3, 4, (module.BATCH, 5))
    model, memories = export_jax.trace(policy, obs)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    many = np.random.default_rng(2).integers(-3, 4, (200, 5))
    action, scores = session.run(None, {"obs": many})
    np.testing.assert_array_equal(action, policy(many))
    assert memories == [] and scores.shape == (200, 8) and len(set(action)) > 3
