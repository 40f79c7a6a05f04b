"""Run untrusted code. The interface is in `protocol`, the backends in `registry`."""
