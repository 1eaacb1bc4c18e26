"""The command line: parse, call, print. Nothing is decided here that a library user would miss.

Rules:
- One module per group of commands. It imports only typer and the standard library at its top; what a command
  needs is imported when it runs, so that `pairbus --help` answers at once.
- Results go to standard output, everything else to standard error.
- What went wrong is one sentence: what was given, what was expected, what to do. No tracebacks, no secrets.

Exit codes are in `exits`.
"""
