"""The API keys of a deployment, one a line of a file outside its bundle: who serves and who asks read them alike."""

from pathlib import Path

from dualpace.plan.manifest import BundleError


def read_api_keys(file: str) -> tuple[bytes, ...]:
    """The keys in `serving.api_key_file`, at least one; none where no file is named. Raises BundleError."""
    if not file:
        return ()
    try:
        lines = Path(file).read_bytes().splitlines()
    except OSError as error:
        raise BundleError(f"serving.api_key_file {file}: {error.strerror}; mount it or change the spec") from error
    keys = tuple(line.strip() for line in lines if line.strip())
    if not keys:
        raise BundleError(f"serving.api_key_file {file} holds no key; write one a line")
    return keys
