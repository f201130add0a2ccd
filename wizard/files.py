"""The one way files reach the disk: whole or not at all, and never over something without consent."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path


class FileExists(Exception):
    """A file with other content is there and nobody agreed to replace it."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} exists and differs; nothing was written. Agree to replace it, or choose another folder."
        )
        self.path = path


def write_atomic(
    path: Path, text: str, *, overwrite: bool = False, keep_previous: bool = False, mode: int = 0o644
) -> None:
    """Write `text` as UTF-8 to `path` through a synced temporary file beside it.

    A symbolic link is followed, so that the link stays and its target changes; an existing file's permissions
    are kept, a new file gets `mode` less the umask. With `keep_previous`, the old version stays as `NAME.bak`.

    Raises:
        FileExists: the file has other content and `overwrite` is False.
        OSError: the disk is full, or the folder is missing or read-only; the old file is untouched.
    """
    target = Path(os.path.realpath(path))
    data = text.encode()
    permissions = mode & ~_umask()
    if target.exists():
        if target.read_bytes() == data:
            return
        if not overwrite:
            raise FileExists(path)
        permissions = stat.S_IMODE(target.stat().st_mode)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, permissions)
        if keep_previous and target.exists():
            os.replace(target, target.with_name(target.name + ".bak"))
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
