"""Events reach TensorBoard's writer in batches: fewer interruptions of the training, and nothing is lost."""

import os
import socket
import time

import pytest
from conftest import curves
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from cleanrl_utils import writer as jax_writer
from cleanrl_utils.curves import INTERVAL, event_file, wait_for_the_last_name, write_in_batches


@pytest.fixture(params=[SummaryWriter, jax_writer.SummaryWriter], ids=["PyTorch", "JAX"])
def writer(request, tmp_path):
    """The writer of a script in PyTorch, and that of one in JAX."""
    return request.param(str(tmp_path))


def test_events_are_handed_over_once_a_second_in_their_order(writer, tmp_path, monkeypatch):
    clock, handed_over = [100.0], []
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    file = event_file(writer)
    add_event = file.add_event
    file.add_event = lambda event: (handed_over.append(event.step), add_event(event))
    write_in_batches(writer)
    writer.add_scalar("a", 1.0, 1)  # the first one at once: TensorBoard shows a run from its start
    assert handed_over == [1]
    for step in (2, 3, 4):
        writer.add_scalar("a", 1.0, step)
    assert handed_over == [1]
    clock[0] += INTERVAL
    writer.add_scalar("a", 1.0, 5)
    assert handed_over == [1, 2, 3, 4, 5]
    writer.close()
    assert [step for step, _ in curves(tmp_path)["a"]] == [1, 2, 3, 4, 5]


def test_scalars_of_one_step_are_one_event(writer, tmp_path):
    handed_over = []
    file = event_file(writer)
    add_event = file.add_event
    file.add_event = lambda event: (handed_over.append(event.step), add_event(event))
    write_in_batches(writer)
    writer.add_scalar("a", 0.0, 0)  # is handed over at once
    for step in (1, 2):
        writer.add_scalar("a", 10.0 * step, step)
        writer.add_scalar("b", 20.0 * step, step)
        writer.add_text("c", f"text {step}", step)
    writer.add_scalar("a", 30.0, 1)  # an earlier step once more
    writer.close()
    assert handed_over == [0, 1, 2, 1]
    assert curves(tmp_path)["a"] == [(0, 0.0), (1, 10.0), (2, 20.0), (1, 30.0)]
    assert curves(tmp_path)["b"] == [(1, 20.0), (2, 40.0)]
    texts = EventAccumulator(str(tmp_path)).Reload().Tensors("c/text_summary")
    assert [x.tensor_proto.string_val[0] for x in texts] == [b"text 1", b"text 2"]


@pytest.mark.parametrize("end", ["flush", "close"])
def test_flush_and_close_write_what_was_held_back(writer, tmp_path, end):
    write_in_batches(writer)
    for step in range(100):
        writer.add_scalar("a", step / 2, step)
    getattr(writer, end)()
    assert curves(tmp_path)["a"] == [(step, step / 2) for step in range(100)]


def test_events_keep_the_time_at_which_they_were_logged(writer, tmp_path):
    write_in_batches(writer)
    writer.add_scalar("a", 1.0, 1)
    before = time.time()
    writer.add_scalar("a", 2.0, 2)
    after = time.time()
    time.sleep(0.2)
    writer.close()
    events = EventAccumulator(str(tmp_path)).Reload().Scalars("a")
    assert before <= events[-1].wall_time <= after


def test_a_script_that_ends_with_an_error_keeps_the_end_of_its_curves(runner):
    code = """
import os
import socket
import time
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard import SummaryWriter
from cleanrl_utils.curves import write_in_batches
write = RecordWriter.write
def slow_write(self, data):  # a disk that is slower than the script
    time.sleep(0.01)
    write(self, data)
RecordWriter.write = slow_write
writer = SummaryWriter("run")
write_in_batches(writer)
for step in range(50):
    writer.add_scalar("a", step, step)
raise ValueError("a mistake in the loop")
"""
    result = runner.run("-c", code, check=False)
    assert result.returncode == 1 and "a mistake in the loop" in result.stderr
    assert [step for step, _ in curves(runner.folder / "run")["a"]] == list(range(50))


@pytest.mark.parametrize(
    "old, waits",
    [
        ("{now}.{host}.{later}", True),  # processes of one second: this one would come first
        ("{now}.{host}.{earlier}", False),
        ("{before}.{host}.{later}", False),
        ("{tomorrow}.{host}.{later}", True),  # the clock was set back: not forever
    ],
)
def test_event_files_of_one_second_are_in_the_order_of_their_runs(tmp_path, monkeypatch, old, waits):
    clock, host = [1_800_000_000.9], "host"
    monkeypatch.setattr(time, "time", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: clock.append(clock.pop() + seconds))
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    monkeypatch.setattr(os, "getpid", lambda: 1000)
    names = {"now": 1_800_000_000, "before": 1_799_999_999, "tomorrow": 1_800_086_400}
    name = old.format(**names, host=host, later=999, earlier=1)  # as text, 1000 comes before 999
    (tmp_path / f"events.out.tfevents.{name}.0").touch()
    wait_for_the_last_name(str(tmp_path))
    assert (clock[0] > 1_800_000_000.9) == waits and clock[0] < 1_800_000_002
    if "tomorrow" not in old:
        ours = f"events.out.tfevents.{int(clock[0])}.{host}.1000.0"
        assert ours > f"events.out.tfevents.{name}.0"
