"""All ranks of a small mesh played in one process: what a type of `sharding.types` means.

Read `spread`, `redistributed`, then `players`. A played tensor has what every rank holds, stacked
along one dim for each axis of the mesh, in front of its own dims.
"""
