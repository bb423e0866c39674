"""Several processes, one run, as `torchrun` starts them.

A method sees the whole batch and all of its logits on every rank, and knows nothing of ranks: what is divided is the
call of the network. Row i of a batch belongs to rank i % N. Rank 0 alone writes files and speaks.
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
import torch.distributed.nn  # before any group is made: gloo aborts at exit now and then if it comes later
from torch import Tensor, nn

from cotrain.types import UserError

T = TypeVar("T")
REACH = timedelta(minutes=5)  # for all processes to start
WAIT = timedelta(hours=2)  # for one that decodes images, or evaluates, while the others wait


class LostRank(Exception):
    """Another process of the job is gone."""


class SaidByFirst(UserError):
    """An error that rank 0 has too, and tells of."""


@dataclass(frozen=True)
class Ranks:
    rank: int = 0
    size: int = 1
    local: int = 0  # number on its machine

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
                    f"choose a multiple of {self.size}, or another --nproc-per-node"
                )

    def each(self, make: Callable[[], T]) -> T:
        """What every rank makes for itself, the first on each machine before the others. One's error ends them all."""
        if self.size == 1:
            return make()
        made, error = None, None
        for turn in (self.local == 0, self.local != 0):
            if turn and error is None:
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
        """What rank 0 makes, for every rank; its error too."""
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
            raise answer[1] if self.first else SaidByFirst(str(answer[1]))
        return answer[0]

    def error(self, line: str) -> UserError:
        """One that all ranks raise."""
        return UserError(line) if self.first else SaidByFirst(line)

    def same(self, value: Any, what: str) -> None:
        """Refuse to go on where ranks do not have the same."""
        if self.size > 1 and any(other != value for other in self._gathered(value)):
            raise self.error(f"{what} differ between the processes of this job")

    def any(self, flag: bool) -> bool:
        """Whether it is so on some rank."""
        if self.size == 1:
            return flag
        together = torch.tensor(int(flag))
        dist.all_reduce(together, dist.ReduceOp.MAX, group=_control())
        return bool(together)

    def _gathered(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=_control())
        return values

    @contextmanager
    def together(self, message: Callable[[], str]) -> Iterator[None]:
        """What breaks because another process is gone ends with this message.

        torchrun then sends SIGTERM to those that are left: they ignore it, to say what happened and end by themselves.
        """
        try:
            yield
        except RuntimeError as error:
            if self.size == 1 or not _is_of_connections(error):
                raise
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            raise LostRank(message()) from error

    def divide(self, net: nn.Module) -> nn.Module:
        return net if self.size == 1 else Divided(net, self)

    def parallel(self, objective: nn.Module, device: torch.device) -> nn.Module:
        """The same module, whose backward leaves the mean of all ranks' gradients."""
        if self.size == 1:
            return objective
        return nn.parallel.DistributedDataParallel(objective, [device] if device.type == "cuda" else None)


ALONE = Ranks()


class Divided(nn.Module):
    """The network as a method sees it: takes a whole batch, computes this rank's rows, and returns those of all."""

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
    """(H, n / N, C) of each rank -> (H, n, C) of all."""

    @staticmethod
    def forward(ctx: Any, mine: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        parts = [torch.empty_like(mine, memory_format=torch.contiguous_format) for _ in range(ranks.size)]
        dist.all_gather(parts, mine.contiguous())
        return torch.stack(parts, dim=2).flatten(1, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """All ranks compute the same loss, and DistributedDataParallel takes the mean of what they return: hence N."""
        return gradients[0][:, ctx.ranks.own] * ctx.ranks.size, None


def _is_of_connections(error: RuntimeError) -> bool:
    return isinstance(error, dist.DistError) or "gloo" in str(error) or "onnection" in str(error)


_groups: list[dist.ProcessGroup] = []
_joins = count()


def _control() -> dist.ProcessGroup:
    """Small messages between processes go by gloo, also where tensors go by NCCL: no GPU is waited for."""
    return _groups[-1]


def own_rank() -> int:
    """As torchrun says; 0 in a process that was started alone."""
    return int(os.environ.get("RANK", 0))


@contextmanager
def joined() -> Iterator[Ranks]:
    """The processes of this job, if torchrun started it; else this one alone. Leaving it ends the job's connections.

    Where the caller has joined them already, they are those.
    """
    began = not dist.is_initialized()
    if began and os.environ.get("WORLD_SIZE", "1") == "1":
        yield Ranks()
        return
    if began:
        _begin()
    ranks = Ranks(dist.get_rank(), dist.get_world_size(), int(os.environ.get("LOCAL_RANK", 0)))
    try:
        with ranks.together(lambda: "another process of this job has ended; start the job again"):
            _groups.append(dist.new_group(backend="gloo", timeout=WAIT))
            yield ranks
    finally:
        _groups.clear()
        if began:
            dist.destroy_process_group()


def _begin() -> None:
    missing = [name for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise UserError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']} but {' and '.join(missing)} not set: start several processes with "
            "torchrun (docs/guide/cluster.md), or unset WORLD_SIZE"
        )
    on_gpu = torch.cuda.is_available()
    try:
        if on_gpu:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        store, rank, size = next(dist.rendezvous("env://", timeout=REACH))
        apart = dist.PrefixStore(f"cotrain {next(_joins)}", store)  # a process may join again: one fit after another
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpu else "gloo", store=apart, rank=rank, world_size=size, timeout=WAIT
        )
    except (RuntimeError, ValueError) as error:  # of the network, of the store, of a malformed address or number
        place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        reason = str(error).splitlines()[0]
        raise UserError(f"rank {os.environ['RANK']} cannot meet the other processes at {place} ({reason})") from error
