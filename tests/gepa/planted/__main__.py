"""`python -m planted policy|reflection`: an endpoint in a process of its own; prints its URL, serves until killed."""

from __future__ import annotations

import argparse
import asyncio
from functools import partial

from planted.policy import answer
from planted.reflection import Proposer
from planted.server import Endpoint, Trouble
from planted.world import World


def main() -> None:
    parser = argparse.ArgumentParser(prog="planted", description=__doc__)
    parser.add_argument("model", choices=("policy", "reflection"))
    parser.add_argument("--seed", type=int, default=0, help="of the world, or of the proposals")
    parser.add_argument("--kinds", type=int, default=4, help="of things that questions are about")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--latency-ms", type=float, default=0.0)
    parser.add_argument("--busy-every", type=int, default=0, help="requests between bursts of 429")
    parser.add_argument("--busy-for", type=int, default=0, help="requests of a burst")
    parser.add_argument("--fail-every", type=int, default=0, help="each so manieth request fails with 500")
    parser.add_argument("--insight", type=float, default=Proposer().insight)
    parser.add_argument("--useless", type=float, default=Proposer().useless)
    given = parser.parse_args()
    if given.model == "policy":
        says = partial(answer, World.of(given.seed, kinds=given.kinds))
    else:
        says = Proposer(given.seed, given.insight, given.useless).answer
    trouble = Trouble(given.busy_every, given.busy_for, given.fail_every)
    endpoint = Endpoint(says, given.latency_ms / 1000, trouble, port=given.port)
    asyncio.run(endpoint.serve(lambda: print(endpoint.url, flush=True)))


if __name__ == "__main__":
    main()
