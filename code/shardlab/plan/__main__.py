"""Plan the training of a model on a cluster: `python -m shardlab.plan --help`."""

import json
import os
import sys

from shardlab.files.given import shown

from .answer import ask
from .arguments import complain, parser, request
from .text import lines

FITS, NOTHING_FITS, NOT_UNDERSTOOD, INTERRUPTED = 0, 1, 2, 130


def main(words: list[str] | None = None) -> int:
    """Answer one command line; return the exit status."""
    given = parser().parse_args(words)
    try:
        asked = request(given)
        _progress(f"searching plans for {asked.question.cluster.gpus:,} GPUs ...")
        answer = ask(asked)
    except ValueError as error:
        complain(str(error))
        return NOT_UNDERSTOOD
    _progress(f"tried {answer.found.count:,} plans")
    if asked.as_json:
        print(json.dumps(answer.data, indent=2, allow_nan=False))
    else:
        print(shown("\n".join(lines(answer))))
    return FITS if answer.rows else NOTHING_FITS


def _progress(text: str) -> None:
    """Show progress at a terminal; files and pipes get the answer alone."""
    if sys.stderr and sys.stderr.isatty():
        print(text, file=sys.stderr)


def guarded() -> int:
    """Answer the command line of this process; an output that closes early is no mistake."""
    if not sys.stdout:
        complain("the answer cannot be written: the output is closed; give it another place")
        return NOT_UNDERSTOOD
    try:
        try:
            return main()
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:  # of the output, such as: | head, > /dev/full
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return FITS
        complain(f"the answer cannot be written: {error.strerror}; give it another place")
        return NOT_UNDERSTOOD


if __name__ == "__main__":
    sys.exit(guarded())
