"""What the hub does, as functions over a database session; requests and pages are in `api` and `pages`."""
