"""`python -m dualpace.cli` is `dualpace`."""

from dualpace.cli import main

main()
