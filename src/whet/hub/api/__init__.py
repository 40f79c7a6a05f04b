"""The HTTP interface: routes without logic, which declare their action and call `whet.hub.domain`."""
