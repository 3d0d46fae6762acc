"""Starts that fail, and runs that end: two agents of torchrun on this machine, and what they say.

Read `agents` first, which starts two of them and takes everything away again, with `ports` for the
sockets that are in their way; then `rendezvous` and `groups`, one row for each cause, made of
`parts`; `starts` runs a row, and finds the likely causes of a message. `stages` lists how long each
stage of a start waits. `endings` kills or stops one process of a run in training, as `events`
lists, and watches the rest.
"""
