"""Files reach the disk whole or not at all, and never over something without consent."""

from __future__ import annotations

import os
import resource
import signal
import stat
from pathlib import Path

import pytest

from wizard.files import FileExists, write_atomic


def test_new_file_and_the_same_again(tmp_path: Path):
    path = tmp_path / "x"
    write_atomic(path, "a\n")
    write_atomic(path, "a\n")
    assert path.read_text() == "a\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]


def test_no_consent_nothing_changes(tmp_path: Path):
    path = tmp_path / "x"
    path.write_text("mine")
    with pytest.raises(FileExists):
        write_atomic(path, "yours")
    assert path.read_text() == "mine"


def test_consent_keeps_the_previous_version_and_its_permissions(tmp_path: Path):
    path = tmp_path / "x"
    path.write_text("old")
    path.chmod(0o600)
    write_atomic(path, "new", overwrite=True, keep_previous=True)
    assert (path.read_text(), (tmp_path / "x.bak").read_text()) == ("new", "old")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_link_stays_a_link(tmp_path: Path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_atomic(link, "new", overwrite=True)
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_umask_is_respected(tmp_path: Path):
    before = os.umask(0o077)
    try:
        write_atomic(tmp_path / "x", "a", mode=0o755)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o700


def test_a_full_disk_leaves_the_old_file(tmp_path: Path):
    """A real write error: the process may not write files above 4 kB (EFBIG where a full disk gives ENOSPC)."""
    path = tmp_path / "x"
    path.write_text("old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            write_atomic(path, "n" * 100_000, overwrite=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]


def test_a_missing_folder_is_an_error_of_its_own(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        write_atomic(tmp_path / "gone" / "x", "a")
