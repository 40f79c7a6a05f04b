"""Gradients, optimisers and what they are computed with."""

import logging

# PEFT imports bitsandbytes where it is installed, which then logs what else a CPU could have.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
