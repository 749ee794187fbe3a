"""A writer of TensorBoard's event files without PyTorch, for scripts in JAX: what they use of its `SummaryWriter`."""

import time
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.summary.writer import event_file_writer  # the module: wandb puts a class of its own into it


class SummaryWriter:
    def __init__(self, log_dir: str, purge_step: int | None = None, max_queue: int = 10) -> None:
        """TensorBoard discards what earlier files of this folder say of the step `purge_step` and later ones."""
        self.file = event_file_writer.EventFileWriter(log_dir, max_queue)
        if purge_step is not None:
            self.add(purge_step, file_version="brain.Event:2")
            self.add(purge_step, session_log=SessionLog(status=SessionLog.START))

    def add(self, step: int, **what: Any) -> None:
        self.file.add_event(Event(wall_time=time.time(), step=int(step), **what))

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.add(step, summary=Summary(value=[Summary.Value(tag=tag, simple_value=float(value))]))

    def add_text(self, tag: str, text: str, step: int) -> None:
        one_text = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
        tensor = TensorProto(dtype="DT_STRING", string_val=[text.encode()], tensor_shape=one_text)
        metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        value = Summary.Value(tag=f"{tag}/text_summary", metadata=metadata, tensor=tensor)
        self.add(step, summary=Summary(value=[value]))

    def flush(self) -> None:
        self.file.flush()

    def close(self) -> None:
        self.file.close()
