"""`python -m tokendepth`: the command line."""

from tokendepth.cli.main import entry

entry()
