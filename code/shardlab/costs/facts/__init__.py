"""Facts, each with its source: machines, and models that others have trained.

`chips` and the links of `hardware` are what machines are made of; `network` joins them, `nodes`
lists servers by name, and `wiring` and `topology_matrix` draw and read their wires. `models` and
`mixtures` list published models, `recipes` the formats in which they are trained.
"""
