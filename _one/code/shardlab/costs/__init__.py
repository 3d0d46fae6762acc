"""Costs: what a run should take in bytes, FLOPs and seconds, in pure Python.

`ranks` does what this room predicts.
"""
