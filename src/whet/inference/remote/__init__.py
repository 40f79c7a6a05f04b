"""An engine in another process, and connections to engine servers."""
