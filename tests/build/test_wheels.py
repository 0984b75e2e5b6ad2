"""The image's packages: which wheels its bases run."""

from packaging.tags import platform_tags

from dualpace.build import wheels


def test_wheels_of_each_c_library_that_a_base_can_run_are_asked_for(monkeypatch):
    """Not only of those that packages were built for most: one wheel that is missed, and no image can be built."""
    monkeypatch.setattr("packaging._manylinux._get_glibc_version", lambda: (2, 28))
    monkeypatch.setattr("packaging._manylinux._is_compatible", lambda *_: True)
    monkeypatch.setattr("sysconfig.get_platform", lambda: "linux-x86_64")
    runs = {tag.removesuffix("_x86_64") for tag in platform_tags()} - {"linux"}
    assert {name for name in runs if not name.startswith("musllinux")} == set(wheels._PLATFORMS)
