"""Run by alembic: migrates through the connection that `whet.hub.storage.database.migrate` passes."""

from alembic import context

schema = context.config.attributes["schema"]
context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=schema.metadata,
    version_table=schema.version_table,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
