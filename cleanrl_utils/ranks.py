"""Several processes that train one run: the first one alone writes and speaks, and all of them stop together."""

import os
import sys


def are_connected() -> bool:
    """Whether the processes can talk to each other by now."""
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and dist.is_initialized()


def number() -> int:
    """The rank of this process among those that torchrun or a scheduler has started; 0 if it is alone."""
    if are_connected():
        return sys.modules["torch.distributed"].get_rank()
    is_one_of_several = {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys()
    return int(os.environ["RANK"]) if is_one_of_several else 0


def is_first() -> bool:
    return number() == 0


def largest(numbers: list[int]) -> list[int]:
    """The largest of each number over all processes: what one of them knows, all of them know."""
    import torch
    import torch.distributed as dist

    tensor = torch.tensor(numbers, device="cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return tensor.tolist()
