"""The README's picture: the explorer of the title page in its first state, with what it says written into the file.

    python tools/picture.py         after each change of the title page's numbers
"""

import json
import shutil
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory

import chromium
import drawings
from playwright.sync_api import Browser

from shardlab import explorers
from shardlab.explorers import title
from shardlab.explorers.explorer import Explorer
from shardlab.files.terminal import no_arguments

TARGET = drawings.IMAGES / "explorer.png"
WIDTH, SCALE = 760, 2  # pixels of the page, and pixels of the file for each of them
BOOK = drawings.IMAGES.parent
FILES = [  # what the page loads
    *Path(explorers.__file__).parent.glob("explorer.*s"),
    *BOOK.glob("_ext/fonts/*latin-wght-normal.woff2"),
    Path(str(metadata.distribution("plotly").locate_file("plotly/package_data/plotly.min.js"))),
]
HEAD = """<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="explorer.css"><style>
    @font-face {
        font-family: "Source Sans 3"; font-weight: 200 900; src: url("source-sans-3-latin-wght-normal.woff2");
    }
    * { box-sizing: border-box; }
    body { margin: 0; padding: 0 16px; font: 16px/1.6 "Source Sans 3"; }
    .explorer :is(select, input) { font: inherit; }
</style>"""


def pixels(browser: Browser, shown: Explorer) -> bytes:
    """Draw an explorer as the built page shows it: a PNG that names what it says."""
    with TemporaryDirectory() as folder:
        for file in FILES:
            shutil.copy(file, folder)
        page = Path(folder, "page.html")
        page.write_text(f'{HEAD}{shown.html()}<script src="explorer.js"></script>', encoding="utf-8")
        tab = browser.new_page(viewport={"width": WIDTH, "height": 900}, device_scale_factor=SCALE)
        tab.emulate_media(color_scheme="light")
        tab.goto(page.as_uri())
        tab.locator(".explorer[data-state] .main-svg").first.wait_for()
        made = tab.locator("body").screenshot()
        tab.close()
    return drawings.labelled(made, says(shown))


def says(shown: Explorer) -> bytes:
    """What stands in the PNG of this explorer as long as it is up to date: state, sentence and table, in ASCII."""
    view = shown.view(**shown.default())
    return b"tEXtComment\0" + json.dumps([shown.title, shown.default(), view.sentence, view.table]).encode()


if __name__ == "__main__":
    no_arguments(__doc__)
    with chromium.started() as browser:
        TARGET.write_bytes(pixels(browser, title.explorer()))
    print(TARGET)
