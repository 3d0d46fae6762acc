"""Read and write a published checkpoint in the files of Hugging Face, each rank what it keeps.

Read `names` first, which says where a parameter lies; then `files`, which finds tensors in a folder
and reads parts of them, `reading`, which fills what a rank holds, and `writing`, the way back.
"""

from .reading import read
from .writing import MOST_BYTES, write

__all__ = ["MOST_BYTES", "read", "write"]
