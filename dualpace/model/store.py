"""Folders of the store that are made once and appear whole."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `final` by rename on success and is removed on failure.

    If another process made `final` meanwhile, its folder stays: equal names mean equal content.
    """
    partial = final.with_name(f".{final.name}.{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        try:
            partial.rename(final)
        except OSError:
            if not final.is_dir():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
