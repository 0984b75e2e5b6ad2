"""The publisher's and collector's source is the device's too."""

import pytest

from dualpace.build.errors import BuildError

from .compiled import device_publisher
from .plans import SMALL


def test_the_device_compiler_takes_the_same_source_without_a_warning(tmp_path):
    try:
        cubin = device_publisher(SMALL, tmp_path)
    except BuildError as error:
        pytest.skip(str(error))
    assert b"drive" in cubin.read_bytes()
