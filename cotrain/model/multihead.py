"""One shared trunk f and M heads g_m of the same structure: p_m = g_m(f(x))."""

from collections.abc import Callable, Sequence
from typing import Literal, Self

import torch
from torch import Tensor, nn

from cotrain.model.stages import Backbone


class MultiHead(nn.Module):
    """A trunk followed by heads. Any `nn.Module` can be the trunk; `build_head` builds one head.

    If `channels` is given, every call checks it; otherwise that is left to the trunk. The first `classes` outputs of a
    head are its logits; None: all of them.
    """

    def __init__(
        self,
        trunk: nn.Module,
        build_head: Callable[[], nn.Module],
        heads: int,
        *,
        head_init: Literal["independent", "copied"] = "independent",
        channels: int | None = None,
        classes: int | None = None,
    ) -> None:
        super().__init__()
        if heads < 1:
            raise ValueError(f"a network needs at least one head, not {heads}")
        self.trunk = trunk
        self.heads = nn.ModuleList(build_head() for _ in range(heads))
        self.channels = channels
        self.classes = classes
        if head_init == "copied":
            for head in self.heads[1:]:
                head.load_state_dict(self.heads[0].state_dict())

    @classmethod
    def cut(
        cls,
        backbone: Backbone,
        heads: int,
        *,
        after: str = "paper",
        head_init: Literal["independent", "copied"] = "independent",
        dropout: Sequence[float] | None = None,
    ) -> Self:
        """Cut a backbone after the named stage: the stages up to there are shared, and each head has the rest.

        "paper" cuts where the paper does; "none" shares nothing and gives separate models. `dropout` has one rate per
        head.
        """
        shared = backbone.place(after)
        trunk = nn.Sequential(*(stage.build(0.0) for stage in backbone.stages[:shared]))
        rates = iter(dropout or [0.0] * heads)

        def build_head() -> nn.Module:
            rate = next(rates)
            return nn.Sequential(*(stage.build(rate) for stage in backbone.stages[shared:]))

        return cls(trunk, build_head, heads, head_init=head_init, channels=backbone.channels, classes=backbone.classes)

    def channels_last(self) -> Self:
        """Switch to the memory layout in which convolutions are fastest."""
        return self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(
        self,
        shared: Tensor,
        private: Tensor | None = None,
        seen: Tensor | None = None,
        *,
        extra: bool = False,
        trunk_of: int | None = None,
    ) -> Tensor:
        """Logits (H, n + U, C): all heads see `shared` (n, c, h, w), head m sees view m of `private` (H, U, c, h, w).

        A single private view, (1, U, c, h, w), is used for all heads. With `seen` (H, U), head m gets only the images
        seen[m]: an image that no head sees costs nothing, and the logits of unseen images are zero. With `extra`, a
        method's additional outputs follow the logits. With `trunk_of`, only that head's gradient reaches the trunk.
        """
        outputs = self._outputs(shared, private, seen, trunk_of)
        return outputs if extra else outputs[..., : self.classes]

    def _outputs(self, shared: Tensor, private: Tensor | None, seen: Tensor | None, trunk_of: int | None) -> Tensor:
        self._check(shared, private)
        if private is not None and seen is not None:
            return self._stack(len(shared) + private.shape[1], self._selective(shared, private, seen, trunk_of))
        if private is not None and len(private) == 1:
            shared, private = torch.cat([shared, private[0]]), None
        if private is None:
            features = self.trunk(shared)
            rows = shared.shape[0]  # len() would fix the number of images in an exported graph
            return self._stack(rows, self._of_heads([features] * len(self.heads), trunk_of))
        images, views = len(shared), private.shape[1]
        features = self.trunk(torch.cat([shared, private.flatten(0, 1)]))
        common, *own = features.split([images] + [views] * len(self.heads))
        logits = self._of_heads([torch.cat([common, view]) for view in own], trunk_of)
        return self._stack(images + views, logits)

    def _of_heads(self, features: list[Tensor], trunk_of: int | None) -> list[Tensor]:
        """The logits of each head, from its own features."""
        held = [own if trunk_of in (None, number) else own.detach() for number, own in enumerate(features)]
        return [head(own) for head, own in zip(self.heads, held, strict=True)]

    def _selective(self, shared: Tensor, private: Tensor, seen: Tensor, trunk_of: int | None) -> list[Tensor]:
        images, (views, unlabelled) = len(shared), private.shape[:2]
        rows = [of_head.nonzero().squeeze(1) for of_head in seen]
        wanted = [row + (head * unlabelled if views > 1 else 0) for head, row in enumerate(rows)]
        needed, places = torch.cat(wanted).unique(return_inverse=True)
        sizes = [len(row) for row in rows]
        needed, places, rows_there = (
            index.to(shared.device, non_blocking=True) for index in (needed, places + images, torch.cat(rows))
        )
        features = self.trunk(torch.cat([shared, private.flatten(0, 1)[needed]]))
        outputs = self._of_heads(
            [torch.cat([features[:images], features[own]]) for own in places.split(sizes)], trunk_of
        )
        logits = []
        for output, row in zip(outputs, rows_there.split(sizes), strict=True):
            for_all, for_own = output.split([images, len(row)])
            spread = for_own.new_zeros(unlabelled, for_own.shape[1]).index_copy(0, row, for_own)
            logits.append(torch.cat([for_all, spread]))
        return logits

    def _stack(self, rows: int, logits: list[Tensor]) -> Tensor:
        if any(output.ndim != 2 or output.shape[0] != rows for output in logits):
            raise ValueError(f"a head must return one row of logits per image ({rows}), not {tuple(logits[0].shape)}")
        return torch.stack(logits)

    def _check(self, shared: Tensor, private: Tensor | None) -> None:
        if shared.ndim != 4 or (self.channels is not None and shared.shape[1] != self.channels):
            wanted = f"(n, {self.channels or 'channels'}, height, width)"
            raise ValueError(f"the network expects images of shape {wanted}, not {tuple(shared.shape)}")
        if private is not None and (len(private) not in (1, len(self.heads)) or private.shape[2:] != shared.shape[1:]):
            wanted = f"({len(self.heads)} heads or 1, n, {', '.join(map(str, shared.shape[1:]))})"
            raise ValueError(f"private views must have shape {wanted}, not {tuple(private.shape)}")
