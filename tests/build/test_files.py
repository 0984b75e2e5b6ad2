"""Folders that appear whole."""

import os

import pytest

from dualpace.files import new_folder


def test_a_folder_appears_with_all_that_was_written_or_not_at_all(tmp_path):
    final = tmp_path / "deep" / "final"

    def half() -> None:
        with new_folder(final) as folder:
            (folder / "half").touch()
            raise KeyError

    with pytest.raises(KeyError):
        half()
    assert list(final.parent.iterdir()) == []
    with new_folder(final) as folder:
        (folder / "whole").touch()
        assert not final.exists()
    assert [path.name for path in final.iterdir()] == ["whole"]
    assert final.stat().st_mode & 0o777 == 0o755


def test_makers_of_the_same_process_id_do_not_disturb_each_other(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: 1)
    final = tmp_path / "final"
    with new_folder(final) as one:
        (one / "a").write_text("first")
        with new_folder(final) as other:
            (other / "a").write_text("second")
        assert (one / "a").exists()
    assert (final / "a").read_text() == "second"
    assert [path.name for path in tmp_path.iterdir()] == ["final"]
