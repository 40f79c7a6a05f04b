"""Migrations of the service's tables; run by the hub's `migrate`."""
