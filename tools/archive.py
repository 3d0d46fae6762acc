"""The built site as one zip file, to read without a network: the same pages give the same file, bit by bit."""

import zipfile
from pathlib import Path

from shardlab.files.terminal import no_arguments

ROOT = Path(__file__).resolve().parents[1]
SITE, ARCHIVE = ROOT / "_build" / "html", ROOT / "_build" / "one-model-many-gpus.zip"
EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip file can name


def pack(site: Path, archive: Path) -> Path:
    """Write every file of `site` into `archive`, in one folder, in alphabetical order and without times or owners."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as whole:
        for path in sorted(path for path in site.rglob("*") if path.is_file()):
            entry = zipfile.ZipInfo(f"{archive.stem}/{path.relative_to(site).as_posix()}", EPOCH)
            entry.external_attr = 0o644 << 16  # everybody may read
            entry.compress_type = zipfile.ZIP_DEFLATED
            whole.writestr(entry, path.read_bytes())
    return archive


if __name__ == "__main__":
    no_arguments(__doc__)
    print(pack(SITE, ARCHIVE))
