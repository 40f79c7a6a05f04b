"""Owners have a limit of tokens too."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("quotas", sa.Column("tokens", sa.BigInteger(), nullable=True))
