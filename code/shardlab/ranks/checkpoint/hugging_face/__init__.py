"""Read a published checkpoint in the files of Hugging Face, each rank only what it keeps.

Read `names` first, which says where a parameter lies; then `files`, which finds tensors in a folder
and reads parts of them, and `reading`, which fills what a rank holds.
"""

from .reading import read

__all__ = ["read"]
