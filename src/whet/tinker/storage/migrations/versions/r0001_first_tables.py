"""The first tables. `whet.hub.storage.database.migrate` makes a new database from the tables of the code instead."""

revision = "0001"
down_revision = None


def upgrade() -> None:
    """No database starts before this revision."""
