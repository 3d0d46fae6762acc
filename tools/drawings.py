"""The book's drawings as pixels, beside each SVG: notebooks embed these, because Colab shows no embedded SVG.

    python tools/drawings.py        after each change of book/images/*.svg
"""

import base64
import hashlib
import struct
import zlib
from pathlib import Path

import chromium
from playwright.sync_api import Browser

from shardlab.files.terminal import no_arguments

IMAGES = Path(__file__).resolve().parents[1] / "book" / "images"
FACE = IMAGES.parent / "_ext" / "fonts" / "source-sans-3-latin-wght-normal.woff2"
WIDTH, SCALE = 700, 2  # pixels of a drawing in a notebook, and pixels of the file for each of them
HEADER = 33  # bytes of a PNG before its second chunk


def pixels(browser: Browser, drawing: Path) -> bytes:
    """Draw an SVG on a transparent ground, for light and dark notebooks: a PNG that names what it was drawn from."""
    tab = browser.new_page(device_scale_factor=SCALE)
    face = f"data:font/woff2;base64,{base64.b64encode(FACE.read_bytes()).decode()}"
    style = f"@font-face {{ font-family: 'Source Sans 3'; font-weight: 200 900; src: url({face}) }}"
    tab.set_content(f"<style>{style}</style>{drawing.read_text()}")
    tab.evaluate("document.fonts.ready")
    shape = tab.locator("svg").first
    shape.evaluate(f"svg => {{ svg.style.width = '{WIDTH}px'; }}")
    made = shape.screenshot(omit_background=True)
    tab.close()
    return labelled(made, source(drawing))


def source(drawing: Path) -> bytes:
    """What stands in the PNG of this SVG as long as it is up to date."""
    return b"tEXtSource\0sha256 " + hashlib.sha256(drawing.read_bytes()).hexdigest().encode()


def labelled(png: bytes, chunk: bytes) -> bytes:
    """A PNG with one more chunk, of four letters and data."""
    length, checksum = struct.pack(">I", len(chunk) - 4), struct.pack(">I", zlib.crc32(chunk))
    return png[:HEADER] + length + chunk + checksum + png[HEADER:]


if __name__ == "__main__":
    no_arguments(__doc__)
    with chromium.started() as browser:
        for drawing in sorted(IMAGES.glob("*.svg")):
            target = drawing.with_suffix(".png")
            target.write_bytes(pixels(browser, drawing))
            print(target.name)
