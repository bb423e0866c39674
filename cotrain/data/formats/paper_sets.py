"""The paper's data sets by name: their files lie where `cotrain data fetch` puts them."""

from dataclasses import replace

from cotrain.data.dataset import Dataset
from cotrain.data.fetch import NAMES, placed
from cotrain.data.format import DataFormat, Request
from cotrain.data.loading import open_requested


class PlacedSets(DataFormat):
    order = 0
    listed = ", ".join(NAMES)

    def recognises(self, source: str) -> bool:
        return source in NAMES

    def open(self, request: Request) -> Dataset:
        inside = open_requested(replace(request, source=str(placed(request.source))))
        return replace(inside, source=request.source)
