"""The one way files reach the disk: whole or not at all, and never over something without consent."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
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
    and owner are kept, a new file gets `mode` less the umask. With `keep_previous`, the old version stays as
    `NAME.bak`. At every moment there is a whole file of that name, the old one or the new one.

    Raises:
        FileExists: the file has other content and `overwrite` is False.
        OSError: the disk is full, the folder is missing or read-only, or what is there is a folder, a device or a
            pipe; it is untouched.
    """
    target = Path(os.path.realpath(path))
    data = text.encode()
    before: os.stat_result | None = None
    if target.exists():
        before = target.stat()
        if not stat.S_ISREG(before.st_mode):
            raise OSError(errno.EINVAL, "not a file that could be replaced", str(path))
        if target.read_bytes() == data:
            return
        if not overwrite:
            raise FileExists(path)
        if keep_previous:
            _keep(target)
    temporary = _beside(target)
    # The kernel takes the umask off; until the permissions are known, nobody else may read.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode if before is None else 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        if before is not None:
            if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                # Only root may give a file away.
                with contextlib.suppress(PermissionError):
                    os.chown(temporary, before.st_uid, before.st_gid)
            os.chmod(temporary, stat.S_IMODE(before.st_mode))
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def unused(path: Path) -> Path:
    """Return the path, or the first of `NAME-2`, `NAME-3` … that is not there."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return free


def _keep(target: Path) -> None:
    """Copy a file to `NAME.bak`, whole or not at all."""
    temporary = _beside(target)
    try:
        shutil.copy2(target, temporary)
        os.replace(temporary, target.with_name(target.name + ".bak"))
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _beside(target: Path) -> Path:
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}")
