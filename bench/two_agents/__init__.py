"""Starts that fail, and runs that end: two agents of torchrun on this machine, and what becomes of them.

Read `agents` first, which starts two of them and takes everything away again, with `ports` for the sockets that are in
their way; then starts.toml, a row for each cause, and `starts`, which runs a row. `endings` kills or stops one process
of a run in training, as endings.toml lists, and watches the rest; `events` has the program that trains.
"""
