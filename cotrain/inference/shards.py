"""Divide the images to predict among several jobs."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cotrain.types import UserError


@dataclass(frozen=True)
class Shard:
    """Part `number` (from 1) of `count`."""

    number: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> "Shard":
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise UserError(f"--shard {text}: write K/N with K from 1 to N, for example --shard 3/16")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def of(self, paths: Sequence[str], batch: int) -> Sequence[str]:
        """Consecutive whole batches. So every batch is one of the whole job, and its predictions are the same bits."""
        batches = -(-len(paths) // batch)
        first, end = (batches * number // self.count for number in (self.number - 1, self.number))
        return paths[first * batch : end * batch]

    def name(self, out: Path) -> Path:
        """`out` with a suffix, such as preds-00003-of-00016.csv."""
        return out.with_name(f"{out.stem}-{self.number:05d}-of-{self.count:05d}{out.suffix}")


WHOLE = Shard()
