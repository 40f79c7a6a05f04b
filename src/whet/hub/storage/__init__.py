"""Where the hub keeps things: a database with migrations, and a store of files by their content."""
