"""The picture of the README and of shared links: a step of the title page, with its numbers written into the file.

    python tools/picture.py         after each change of the title page's numbers
"""

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import chromium
import drawings
from playwright.sync_api import Browser

from shardlab import explorers
from shardlab.explorers import title
from shardlab.files.terminal import no_arguments

TARGET = drawings.IMAGES / "title.png"
STEP = 5  # it fits, and some wait
WIDTH, SCALE = 800, 1.875  # pixels of the page, and pixels of the file for each of them
FILES = [  # what the page loads
    *(file for name in ("moving", "title") for file in Path(explorers.__file__).parent.glob(f"{name}.*s")),
    *drawings.IMAGES.parent.glob("_ext/fonts/*latin-wght-normal.woff2"),
]
HEAD = """<!doctype html><meta charset="utf-8">
<link rel="stylesheet" href="moving.css"><link rel="stylesheet" href="title.css"><style>
    @font-face {
        font-family: "Source Sans 3"; font-weight: 200 900; src: url("source-sans-3-latin-wght-normal.woff2");
    }
    * { box-sizing: border-box; }
    body { margin: 0 0 900px; font: 16px/1.6 "Source Sans 3"; }
    .cuts-picture { border: solid white; border-width: 8px 16px 16px; }
</style>"""
SCRIPTS = "".join(f'<script src="{name}.js"></script>' for name in ("moving", "title"))


def pixels(browser: Browser, shown: title.Cuts) -> bytes:
    """Draw a step as the built page shows it: a PNG that names what it says."""
    with TemporaryDirectory() as folder:
        for file in FILES:
            shutil.copy(file, folder)
        page = Path(folder, "page.html")
        page.write_text(f"{HEAD}{shown.html()}{SCRIPTS}", encoding="utf-8")
        tab = browser.new_page(viewport={"width": WIDTH, "height": 900}, device_scale_factor=SCALE)
        tab.emulate_media(color_scheme="light", reduced_motion="reduce")
        tab.goto(page.as_uri())
        tab.evaluate("document.fonts.ready")
        for _ in range(STEP - 1):
            tab.get_by_role("button", name="Next").click()
        made = tab.locator(".cuts-picture").screenshot()
        tab.close()
    return drawings.labelled(made, says(shown))


def says(shown: title.Cuts) -> bytes:
    """What stands in the PNG as long as it is up to date: the table of all steps, in ASCII."""
    return b"tEXtComment\0" + json.dumps(shown.rows()).encode()


if __name__ == "__main__":
    no_arguments(__doc__)
    with chromium.started() as browser:
        TARGET.write_bytes(pixels(browser, title.Cuts()))
    print(TARGET)
