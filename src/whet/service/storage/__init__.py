"""The service's tables and their migrations, in the hub's database."""
