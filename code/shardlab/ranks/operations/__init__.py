"""Starts that fail: two agents of torchrun on this machine that do not meet, and what they say.

Read `agents` first, which starts two of them and takes everything away again, with `ports` for the
sockets that are in their way; then `rendezvous` and `groups`, one row for each cause, made of
`parts`; `starts` runs a row, and finds the likely causes of a message. `stages` lists how long each
stage of a start waits.
"""
