"""`python -m hami.cli` is `hami`."""

from hami.cli.main import main

main()
