"""Standard co-training with three separate models: the cost baseline of the Multi-Head Co-Training paper.

The losses are those of multi-head co-training; nothing is shared but the images. docs/methods/three_models.md.
"""

from cotrain.methods.mhct import MultiHeadCoTraining


class ThreeModels(MultiHeadCoTraining):
    @property
    def share(self) -> str:
        return "none"
