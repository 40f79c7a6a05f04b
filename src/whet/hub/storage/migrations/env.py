"""Run by alembic: migrates through the connection that `whet.hub.storage.database.migrate` passes."""

from alembic import context

from whet.hub.storage.tables import Base

context.configure(
    connection=context.config.attributes["connection"], target_metadata=Base.metadata, render_as_batch=True
)
with context.begin_transaction():
    context.run_migrations()
