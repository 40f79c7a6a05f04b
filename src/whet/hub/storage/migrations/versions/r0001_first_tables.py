"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _accounts()
    _audit()
    _environments()
    _versions()


def _accounts() -> None:
    """Users, organisations and how they log in."""
    op.create_table(
        "accounts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=80), nullable=False),
        sa.Column("kind", sa.String(length=80), nullable=False),
        sa.Column("is_admin", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.Column("disabled_at", sa.Float(precision=53), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_accounts")),
        sa.UniqueConstraint("name", name=op.f("uq_accounts_name")),
    )
    op.create_table(
        "memberships",
        sa.Column("owner_id", sa.Integer(), nullable=False),
        sa.Column("user_id", sa.Integer(), nullable=False),
        sa.Column("role", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["owner_id"], ["accounts.id"], name=op.f("fk_memberships_owner_id")),
        sa.ForeignKeyConstraint(["user_id"], ["accounts.id"], name=op.f("fk_memberships_user_id")),
        sa.PrimaryKeyConstraint("owner_id", "user_id", name=op.f("pk_memberships")),
    )
    op.create_index(op.f("ix_memberships_user_id"), "memberships", ["user_id"], unique=False)
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("user_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("scope", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=80), nullable=False),
        sa.Column("parent_id", sa.String(length=40), nullable=True),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.Column("expires_at", sa.Float(precision=53), nullable=False),
        sa.Column("last_used_at", sa.Float(precision=53), nullable=True),
        sa.Column("revoked_at", sa.Float(precision=53), nullable=True),
        sa.ForeignKeyConstraint(["user_id"], ["accounts.id"], name=op.f("fk_tokens_user_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("digest", name=op.f("uq_tokens_digest")),
    )
    op.create_index(op.f("ix_tokens_parent_id"), "tokens", ["parent_id"], unique=False)
    op.create_index(op.f("ix_tokens_user_id"), "tokens", ["user_id"], unique=False)
    op.create_table(
        "device_codes",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("user_code", sa.String(length=16), nullable=False),
        sa.Column("client", sa.Text(), nullable=False),
        sa.Column("scope", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=80), nullable=False),
        sa.Column("user_id", sa.Integer(), nullable=True),
        sa.Column("expires_at", sa.Float(precision=53), nullable=False),
        sa.Column("polled_at", sa.Float(precision=53), nullable=True),
        sa.ForeignKeyConstraint(["user_id"], ["accounts.id"], name=op.f("fk_device_codes_user_id")),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_device_codes")),
        sa.UniqueConstraint("user_code", name=op.f("uq_device_codes_user_code")),
    )


def _audit() -> None:
    """The audit log, and the one row of state."""
    op.create_table(
        "audit",
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at", sa.Float(precision=53), nullable=False),
        sa.Column("actor", sa.String(length=80), nullable=False),
        sa.Column("owner", sa.String(length=80), nullable=False),
        sa.Column("action", sa.String(length=80), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("previous", sa.String(length=64), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_audit")),
    )
    op.create_index(op.f("ix_audit_owner"), "audit", ["owner"], unique=False)
    op.create_table(
        "state",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("audit_number", sa.Integer(), nullable=False),
        sa.Column("audit_hash", sa.String(length=64), nullable=False),
        sa.Column("key_proof", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_state")),
    )
    op.execute(f"INSERT INTO state (id, audit_number, audit_hash) VALUES (1, 0, '{'0' * 64}')")


def _environments() -> None:
    """Environments with their secrets and variables."""
    op.create_table(
        "environments",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("owner_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=80), nullable=False),
        sa.Column("visibility", sa.String(length=80), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.Column("updated_at", sa.Float(precision=53), nullable=False),
        sa.Column("deleted_at", sa.Float(precision=53), nullable=True),
        sa.ForeignKeyConstraint(["owner_id"], ["accounts.id"], name=op.f("fk_environments_owner_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_environments")),
        sa.UniqueConstraint("owner_id", "name", name=op.f("uq_environments_owner_id")),
    )
    op.create_index(op.f("ix_environments_name"), "environments", ["name"], unique=False)
    op.create_table(
        "secrets",
        sa.Column("environment_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=80), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.Column("updated_at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["environment_id"], ["environments.id"], name=op.f("fk_secrets_environment_id")),
        sa.PrimaryKeyConstraint("environment_id", "name", name=op.f("pk_secrets")),
    )
    op.create_table(
        "variables",
        sa.Column("environment_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=80), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["environment_id"], ["environments.id"], name=op.f("fk_variables_environment_id")),
        sa.PrimaryKeyConstraint("environment_id", "name", name=op.f("pk_variables")),
    )


def _versions() -> None:
    """Versions with their files and actions, and the pushes that make them."""
    op.create_table(
        "versions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("environment_id", sa.Integer(), nullable=False),
        sa.Column("version", sa.String(length=80), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("readme", sa.Text(), nullable=False),
        sa.Column("readme_type", sa.String(length=80), nullable=False),
        sa.Column("requires_python", sa.Text(), nullable=False),
        sa.Column("requires_dist", sa.JSON(), nullable=False),
        sa.Column("core_metadata", sa.LargeBinary(), nullable=False),
        sa.Column("pushed_by", sa.String(length=80), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.Column("yanked_at", sa.Float(precision=53), nullable=True),
        sa.Column("yanked_reason", sa.Text(), nullable=False),
        sa.Column("deleted_at", sa.Float(precision=53), nullable=True),
        sa.Column("downloads", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["environment_id"], ["environments.id"], name=op.f("fk_versions_environment_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_versions")),
        sa.UniqueConstraint("environment_id", "version", name=op.f("uq_versions_environment_id")),
    )
    op.create_index("ix_versions_alive", "versions", ["environment_id", "deleted_at"], unique=False)
    op.create_table(
        "files",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("version_id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=80), nullable=False),
        sa.Column("filename", sa.Text(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["version_id"], ["versions.id"], name=op.f("fk_files_version_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_files")),
        sa.UniqueConstraint("version_id", "kind", name=op.f("uq_files_version_id")),
    )
    op.create_index(op.f("ix_files_sha256"), "files", ["sha256"], unique=False)
    op.create_table(
        "actions",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("version_id", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("claimed_by", sa.String(length=40), nullable=True),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("log", sa.Text(), nullable=False),
        sa.Column("queued_at", sa.Float(precision=53), nullable=False),
        sa.Column("started_at", sa.Float(precision=53), nullable=True),
        sa.Column("finished_at", sa.Float(precision=53), nullable=True),
        sa.ForeignKeyConstraint(["version_id"], ["versions.id"], name=op.f("fk_actions_version_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_actions")),
    )
    op.create_index(op.f("ix_actions_state"), "actions", ["state"], unique=False)
    op.create_index(op.f("ix_actions_version_id"), "actions", ["version_id"], unique=False)
    op.create_table(
        "pushes",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("user_id", sa.Integer(), nullable=False),
        sa.Column("owner_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=80), nullable=False),
        sa.Column("version", sa.String(length=80), nullable=False),
        sa.Column("visibility", sa.String(length=10), nullable=True),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("expected", sa.JSON(), nullable=False),
        sa.Column("findings", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.Column("expires_at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["owner_id"], ["accounts.id"], name=op.f("fk_pushes_owner_id")),
        sa.ForeignKeyConstraint(["user_id"], ["accounts.id"], name=op.f("fk_pushes_user_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pushes")),
    )
    op.create_index(op.f("ix_pushes_state"), "pushes", ["state"], unique=False)
    op.create_index(op.f("ix_pushes_user_id"), "pushes", ["user_id"], unique=False)


def downgrade() -> None:
    op.drop_index(op.f("ix_files_sha256"), table_name="files")
    op.drop_table("files")
    op.drop_index(op.f("ix_actions_version_id"), table_name="actions")
    op.drop_index(op.f("ix_actions_state"), table_name="actions")
    op.drop_table("actions")
    op.drop_index("ix_versions_alive", table_name="versions")
    op.drop_table("versions")
    op.drop_table("variables")
    op.drop_table("secrets")
    op.drop_index(op.f("ix_tokens_user_id"), table_name="tokens")
    op.drop_index(op.f("ix_tokens_parent_id"), table_name="tokens")
    op.drop_table("tokens")
    op.drop_index(op.f("ix_pushes_user_id"), table_name="pushes")
    op.drop_index(op.f("ix_pushes_state"), table_name="pushes")
    op.drop_table("pushes")
    op.drop_index(op.f("ix_memberships_user_id"), table_name="memberships")
    op.drop_table("memberships")
    op.drop_index(op.f("ix_environments_name"), table_name="environments")
    op.drop_table("environments")
    op.drop_table("device_codes")
    op.drop_table("state")
    op.drop_index(op.f("ix_audit_owner"), table_name="audit")
    op.drop_table("audit")
    op.drop_table("accounts")
