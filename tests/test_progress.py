"""A run tells how far it is while it trains, in a small file."""

import time

import pytest
from conftest import curves
from torch.utils.tensorboard import SummaryWriter

from cleanrl_utils import progress, writer


@pytest.fixture(params=[SummaryWriter, writer.SummaryWriter], ids=["PyTorch", "JAX"])
def make_writer(request):
    """The writer of a script in PyTorch, and that of one in JAX."""
    return request.param


def test_progress_is_noted_once_a_second_and_everything_still_reaches_the_curves(tmp_path, monkeypatch, make_writer):
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    writer = make_writer(str(tmp_path))
    progress.follow(writer, tmp_path, total_steps=1000)
    writer.add_scalar("charts/episodic_return", 7.0, 3)
    assert progress.read(tmp_path) == {}  # before the script logs for the first time
    writer.add_scalar("charts/SPS", 50, 10)
    facts = {"step": 10, "total_steps": 1000, "sps": 50.0, "episodic_return": 7.0}
    assert progress.read(tmp_path) == facts
    writer.add_scalar("charts/episodic_return", 8.0, 15)
    clock[0] += 0.5
    writer.add_scalar("charts/SPS", 60, 20)
    assert progress.read(tmp_path) == facts
    clock[0] += 0.5
    writer.add_scalar("charts/SPS", 70, 30)
    assert progress.read(tmp_path) == facts | {"step": 30, "sps": 70.0, "episodic_return": 7.5}
    writer.close()
    logged = curves(tmp_path)
    assert [step for tag in ("charts/episodic_return", "charts/SPS") for step, _ in logged[tag]] == [3, 15, 10, 20, 30]


def test_the_return_is_the_mean_of_the_last_hundred_episodes(tmp_path, make_writer):
    writer = make_writer(str(tmp_path))
    progress.follow(writer, tmp_path, total_steps=1000)
    for episode in range(150):
        writer.add_scalar("charts/episodic_return", episode, episode)
    writer.add_scalar("charts/SPS", 1, 150)
    assert progress.read(tmp_path)["episodic_return"] == pytest.approx(sum(range(50, 150)) / 100)


def test_a_progress_that_cannot_be_written_or_read_ends_nothing(tmp_path, make_writer):
    writer = make_writer(str(tmp_path / "curves"))
    (tmp_path / "run").write_text("a file where a folder should be")
    progress.follow(writer, tmp_path / "run", total_steps=1000)
    writer.add_scalar("charts/SPS", 1, 150)
    writer.close()
    assert curves(tmp_path / "curves") == {"charts/SPS": [(150, 1.0)]}
    (tmp_path / "progress.json").write_text("{")
    assert progress.read(tmp_path) == {}
