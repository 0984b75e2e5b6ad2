"""Certificates that are their own authority."""

import subprocess
from pathlib import Path


def make_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and ::1 and its key, as PEM files in `folder`; the name again makes others of it."""
    certificate, key, new = folder / f"{name}.crt", folder / f"{name}.key", folder / "new"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-noenc", "-days", "1", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,IP:::1"]
    subprocess.run([*command, "-keyout", new, "-out", certificate], check=True, capture_output=True)
    new.rename(key)
    return certificate, key
