"""Files reach the disk whole or not at all, and never over something without consent."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from wizard.files import FileExists, write_atomic
from wizard.plan import Plan
from wizard.plan_file import FILE_NAME, load_plan
from wizard.session import Session


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


def test_a_reader_finds_a_whole_file_at_every_moment(tmp_path: Path):
    path = tmp_path / "x"
    texts = [letter * 4096 for letter in "ab"]
    path.write_text(texts[0])
    seen: set[str] = set()
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.add(path.read_text() if path.exists() else "absent")

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(1, 101):
        write_atomic(path, texts[turn % 2], overwrite=True, keep_previous=True)
    done.set()
    reader.join()
    assert seen <= set(texts)


def test_only_files_are_replaced(tmp_path: Path):
    """A device or a pipe given as --out or --report stays one, even for root."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path(os.devnull)):
        with pytest.raises(OSError, match="not a file"):
            write_atomic(path, "a", overwrite=True)
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 kB, in memory."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], check=False, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", folder], check=True)


def changed(plan: Plan, name: str) -> Plan:
    return plan.replace("trainer.experiment_name", name)


def test_answers_survive_a_full_and_a_read_only_disk(disk: Path):
    path = disk / FILE_NAME
    session = Session(Plan(), path)
    session.save()
    filler = disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as stream:
        while stream.write(bytes(4096)):
            continue
    session.change(changed(Plan(), "mine"))
    with pytest.raises(OSError, match="No space") as full:
        session.save()
    assert full.value.errno == errno.ENOSPC
    assert session.unsaved
    assert load_plan(path) == Plan()
    filler.unlink()
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    with pytest.raises(OSError, match="Read-only"):
        session.save()
    subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
    session.save()
    assert load_plan(path) == session.plan
    assert {entry.name for entry in disk.iterdir()} == {FILE_NAME}


def test_the_version_before_a_sitting_and_of_somebody_else_is_what_stays(tmp_path: Path):
    path, backup = tmp_path / FILE_NAME, tmp_path / f"{FILE_NAME}.bak"
    earlier = Session(changed(Plan(), "earlier"), path)
    earlier.save()
    mine = Session(changed(Plan(), "mine"), path)
    for name in ("a", "b", "c"):
        mine.change(changed(Plan(), name))
        mine.save()
    assert load_plan(backup) == earlier.plan
    theirs = Session(changed(Plan(), "theirs"), path)
    theirs.save()
    mine.change(changed(Plan(), "d"))
    with pytest.raises(FileExists):
        mine.save()
    mine.save(overwrite=True)
    mine.change(changed(Plan(), "e"))
    mine.save()
    assert load_plan(backup) == theirs.plan


def test_answers_put_aside_never_take_the_place_of_others(tmp_path: Path):
    path = tmp_path / FILE_NAME
    for name in ("a", "b"):
        session = Session(changed(Plan(), name), path)
        session.save()
        os.utime(path, (0, 0))
        session.put_aside()
    kept = {load_plan(file).trainer.experiment_name for file in tmp_path.glob("verl-wizard-*.yaml")}
    assert kept == {"a", "b"}
