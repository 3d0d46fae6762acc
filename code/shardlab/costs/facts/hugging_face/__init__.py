"""Sizes of a model from its `config.json`, the file that Hugging Face's transformers writes.

`reading` turns the file into sizes, with one function for each architecture in `dense` and
`mixtures`; `fields` refuses what none of them understands. `details`
adds what a model that computes needs beside.
"""

from .details import read_whole
from .reading import ARCHITECTURES, HuggingFaceModel, read

__all__ = ["ARCHITECTURES", "HuggingFaceModel", "read", "read_whole"]
