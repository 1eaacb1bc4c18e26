"""What operations are billed and what they cost. PURE; prices are data."""

from pairbus.costs.billing import billed_operations, units
from pairbus.costs.bills import Bill, Usage, added_amount, bill, connection_months
from pairbus.costs.estimate import Estimate, EstimateLine, Fleet, Outage, estimate
from pairbus.costs.tariffs import Plan, Tariff, TariffError, parse_tariff, shipped_tariffs, tariff_for

__all__ = [
    "Bill",
    "Estimate",
    "EstimateLine",
    "Fleet",
    "Outage",
    "Plan",
    "Tariff",
    "TariffError",
    "Usage",
    "added_amount",
    "bill",
    "billed_operations",
    "connection_months",
    "estimate",
    "parse_tariff",
    "shipped_tariffs",
    "tariff_for",
    "units",
]
