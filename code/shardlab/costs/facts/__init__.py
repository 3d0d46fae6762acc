"""Facts, each with its source: machines, and models that others have trained.

`chips` and the links of `hardware` are what machines are made of; `network` joins them, `nodes`
lists servers by name, `machines` reads your own with its price and power, `wiring` draws wires, and
`topology_matrix` reads them, with the grammar of `topology_text`. `models` and `mixtures` list
published models, `hugging_face` reads the sizes of others, `recipes` lists the formats in which
they are trained.
"""
