"""The command line: parse, call, print. Library users miss nothing that is here.

- One module per group of commands. At its top it imports only typer, light modules of this package and the standard
  library; functions import the rest when they run, so that `pairbus --help` answers at once.
- Results go to standard output, everything else to standard error.
- An error is one sentence with the value, what was expected and what to do. No tracebacks, no secrets.
"""
