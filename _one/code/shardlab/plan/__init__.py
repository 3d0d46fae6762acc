"""Plan the training of your own model on your own cluster, from a shell.

`arguments` reads the command line and its files, `answer` asks the planner, `text` prints.
"""
