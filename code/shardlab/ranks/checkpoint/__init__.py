"""Checkpoints that any layout can read. Read `boxes` first, which says what a rank holds of the whole, then `files`."""

from .files import check, contents, latest, load, save, weights

__all__ = ["check", "contents", "latest", "load", "save", "weights"]
