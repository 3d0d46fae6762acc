"""Search for the fastest layout of a model on a cluster.

`plans` says what is asked and what is answered, `planner` searches with what `footprint` says of memory, and `remedies`
says what to change where nothing fits.
"""
