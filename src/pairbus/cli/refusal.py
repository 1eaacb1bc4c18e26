"""How a command says that it cannot run."""


class Refusal(Exception):  # noqa: N818 - it is an answer, not a fault
    """One sentence for the user; the command line prints it and exits with code 2."""
