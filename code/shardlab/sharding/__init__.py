"""Who holds what, in numbers: read `deal`, `layout`, `cuts`, then `places` and `sequences`.

`deal` deals n things to k holders, `layout` ranks to axes and layers to stages, `cuts` says along
which dim each parameter is cut, `places` which boxes of it each rank of a layout holds, and
`sequences` which tokens a rank of context parallelism holds.
`types` says what ranks hold of every tensor of a method, and which operations that allows.
"""
