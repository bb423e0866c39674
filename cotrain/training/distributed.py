"""Train one run in several processes, started by `torchrun`.

On every rank a method sees the whole batch and all of its logits, and knows nothing about ranks: only the forward and
backward passes are divided. Row i of a batch belongs to rank i % N. Only rank 0 writes files and prints.
"""

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.distributed.nn  # imported before any group exists: if imported later, gloo sometimes aborts at exit
from torch import Tensor, nn

from cotrain.types import UserError

T = TypeVar("T")
START_TIMEOUT = timedelta(minutes=5)  # until all processes have started
WAIT_TIMEOUT = timedelta(hours=2)  # while others wait for one process that decodes images or evaluates


class RankLost(Exception):
    """Another process of the job has ended."""


class ReportedByRankZero(UserError):
    """An error that rank 0 raises too. Only rank 0 prints it."""


@dataclass(frozen=True)
class Ranks:
    rank: int = 0
    size: int = 1
    local: int = 0  # rank among the processes of its machine

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def own(self) -> slice:
        """The rows of a batch that belong to this rank."""
        return slice(self.rank, None, self.size)

    def check_divides(self, **images: int) -> None:
        for name, number in images.items():
            if number % self.size:
                raise UserError(
                    f"{self.size} processes cannot share optim.{name}={number} equally: "
                    f"choose a multiple of {self.size}, or change --nproc-per-node"
                )

    def each(self, make: Callable[[], T]) -> T:
        """Call `make` on every rank, on each machine's first rank before the others. An error on one ends them all."""
        if self.size == 1:
            return make()
        made, error = None, None
        for my_turn in (self.local == 0, self.local != 0):
            if my_turn and error is None:
                try:
                    made = make()
                except (UserError, OSError, MemoryError) as problem:
                    error = f"{type(problem).__name__}: {problem}" if isinstance(problem, MemoryError) else str(problem)
            errors = self._gathered((socket.gethostname(), error))
            for rank, (host, reason) in enumerate(errors):
                if reason is not None:
                    raise self.error(reason if rank == 0 else f"rank {rank} on {host}: {reason}")
        return made  # type: ignore[return-value]

    def from_first(self, make: Callable[[], T]) -> T:
        """Call `make` on rank 0 and return its result, or raise its error, on every rank."""
        if self.size == 1:
            return make()
        answer: list[Any] = [None, None]
        if self.first:
            try:
                answer[0] = make()
            except (UserError, OSError) as problem:
                answer[1] = problem
        dist.broadcast_object_list(answer, src=0, group=_control())
        if answer[1] is not None:
            raise answer[1] if self.first else ReportedByRankZero(str(answer[1]))
        return answer[0]

    def error(self, line: str) -> UserError:
        """An error that all ranks raise."""
        return UserError(line) if self.first else ReportedByRankZero(line)

    def same(self, value: Any, what: str) -> None:
        """Raise an error if the value differs between ranks."""
        if self.size > 1 and any(other != value for other in self._gathered(value)):
            raise self.error(f"{what} differ between the processes of this job")

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank."""
        if self.size == 1:
            return flag
        highest = torch.tensor(int(flag))
        dist.all_reduce(highest, dist.ReduceOp.MAX, group=_control())
        return bool(highest)

    def _gathered(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=_control())
        return values

    @contextmanager
    def together(self, message: Callable[[], str]) -> Iterator[None]:
        """Raise RankLost with this message if a collective operation fails because another process has ended.

        torchrun then sends SIGTERM to the remaining processes. They ignore it, so that they can print the message.
        """
        try:
            yield
        except RuntimeError as error:
            if self.size == 1 or not _is_connection_error(error):
                raise
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            raise RankLost(message()) from error

    def divide(self, net: nn.Module) -> nn.Module:
        return net if self.size == 1 else Divided(net, self)

    def parallel(self, objective: nn.Module, device: torch.device) -> nn.Module:
        """Wrap the module so that its backward pass averages the gradients over all ranks."""
        if self.size == 1:
            return objective
        return nn.parallel.DistributedDataParallel(objective, [device] if device.type == "cuda" else None)


ALONE = Ranks()


class Divided(nn.Module):
    """The network as a method sees it: takes a whole batch, computes this rank's rows, and returns all rows."""

    def __init__(self, net: nn.Module, ranks: Ranks) -> None:
        super().__init__()
        self.net, self.ranks = net, ranks

    def forward(
        self,
        shared: Tensor,
        private: Tensor | None = None,
        seen: Tensor | None = None,
        *,
        extra: bool = False,
        trunk_of: int | None = None,
    ) -> Tensor:
        own = self.ranks.own
        mine = self.net(
            shared[own],
            None if private is None else private[:, own],
            None if seen is None else seen[:, own],
            extra=extra,
            trunk_of=trunk_of,
        )
        return Gather.apply(mine, self.ranks)


class Gather(torch.autograd.Function):
    """(H, n / N, C) from each rank -> (H, n, C) on all."""

    @staticmethod
    def forward(ctx: Any, mine: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        parts = [torch.empty_like(mine, memory_format=torch.contiguous_format) for _ in range(ranks.size)]
        dist.all_gather(parts, mine.contiguous())
        return torch.stack(parts, dim=2).flatten(1, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Multiply by N: every rank computes the same loss, and DistributedDataParallel averages their gradients."""
        return gradients[0][:, ctx.ranks.own] * ctx.ranks.size, None


def _is_connection_error(error: RuntimeError) -> bool:
    return isinstance(error, dist.DistError) or "gloo" in str(error) or "onnection" in str(error)


_groups: list[dist.ProcessGroup] = []
_connections = count()


def _control() -> dist.ProcessGroup:
    """The gloo group for small messages. NCCL may carry the tensors, but these messages must not wait for a GPU."""
    return _groups[-1]


def own_rank() -> int:
    """The rank that torchrun assigned; 0 in a process started without it."""
    return int(os.environ.get("RANK", 0))


def job_size() -> int:
    """The number of processes that torchrun started; 1 in a process started without it."""
    return int(os.environ.get("WORLD_SIZE", 1))


@contextmanager
def process_group() -> Iterator[Ranks]:
    """Connect the processes that torchrun started; without torchrun, this is the only one. Disconnect on leaving.

    If the caller has already initialised torch.distributed, its processes are used and stay connected.
    """
    ours = not dist.is_initialized()
    if ours and os.environ.get("WORLD_SIZE", "1") == "1":
        yield Ranks()
        return
    if ours:
        _connect()
    ranks = Ranks(dist.get_rank(), dist.get_world_size(), int(os.environ.get("LOCAL_RANK", 0)))
    try:
        with ranks.together(lambda: "another process of this job has ended; start the job again"):
            _groups.append(dist.new_group(backend="gloo", timeout=WAIT_TIMEOUT))
            yield ranks
    finally:
        _groups.clear()
        if ours:
            dist.destroy_process_group()


def _connect() -> None:
    missing = [name for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise UserError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']}, but these are not set: {', '.join(missing)}; start several "
            "processes with torchrun (docs/guide/cluster.md), or unset WORLD_SIZE"
        )
    on_gpu = torch.cuda.is_available()
    try:
        if on_gpu:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        store, rank, size = next(dist.rendezvous("env://", timeout=START_TIMEOUT))
        own_store = dist.PrefixStore(f"cotrain {next(_connections)}", store)  # one per fit in the same process
        backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
        dist.init_process_group(backend, store=own_store, rank=rank, world_size=size, timeout=WAIT_TIMEOUT)
    except (RuntimeError, ValueError) as error:  # network or store failed, or malformed address or number
        place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        reason = str(error).splitlines()[0]
        raise UserError(f"rank {os.environ['RANK']} cannot reach the other processes at {place} ({reason})") from error
