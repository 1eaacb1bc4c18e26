"""Names the suite imports from ``azure.common`` and never uses."""


class AzureHttpError(Exception):
    """Imported by the suite."""


class AzureConflictHttpError(AzureHttpError):
    """Imported by the suite."""
