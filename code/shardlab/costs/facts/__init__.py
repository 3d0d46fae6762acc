"""Facts, each with its source: machines, and models that others have trained.

Facts are rows of CSV files, which `tables` reads; a row without a source is an error. `hardware`
has the chips and links of which machines are made; `network` joins them, `nodes` lists servers,
`machines` reads your own with its price and power, `wiring` draws wires, and `topology_matrix`
reads them, with the grammar of `topology_text`. `models` and `mixtures` have published models,
`hugging_face` reads the sizes of others, `recipes` has the formats in which they are trained.
"""
