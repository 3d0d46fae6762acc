"""Facts, each with its source: machines, and models that others have trained.

`chips` and the links of `hardware` are what machines are made of; `network` joins them, `nodes`
lists servers by name, `machines` reads your own with its price and power, and `wiring` and
`topology_matrix` draw and read their wires. `models` and `mixtures` list published models,
`hugging_face` reads the sizes of others, `recipes` lists the formats in which they are trained.
"""
