"""Sources as links, from the words of a table to the page with the fact."""

import html
import re
from urllib.parse import urlsplit

from IPython.display import HTML

ADDRESS = re.compile(r"https?://[^\s()<>;]*[^\s()<>;.,:]")


def linked(text: str, source: str) -> HTML:
    """Link `text` to the first address in `source`; without an address it stays plain."""
    found = ADDRESS.search(source)
    return HTML(_link(found[0], text) if found else html.escape(text))


def spelled(source: str) -> HTML:
    """Write `source` in full, with the site's name for each address, too long for a table."""
    parts = []
    begin = 0
    for found in ADDRESS.finditer(source):
        parts += [_words(source[begin : found.start()]), _link(found[0], site(found[0]))]
        begin = found.end()
    return HTML("".join([*parts, _words(source[begin:])]))


def site(address: str) -> str:
    """Return the host of `address`, without www."""
    return urlsplit(address).netloc.removeprefix("www.")


def _words(text: str) -> str:
    """Escape plain words, and make code of what stands between backticks."""
    return re.sub("`([^`]*)`", r"<code>\1</code>", html.escape(text))


def _link(address: str, text: str) -> str:
    return f'<a class="reference external" href="{html.escape(address)}">{html.escape(text)}</a>'
