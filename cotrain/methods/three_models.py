"""Standard co-training with three separate models: the cost baseline of the Multi-Head Co-Training paper.

The losses are those of Multi-Head Co-Training, but the models share no weights. docs/methods/three_models.md.
"""

from cotrain.methods.mhct import MultiHeadCoTraining


class ThreeModels(MultiHeadCoTraining):
    @property
    def share(self) -> str:
        return "none"
