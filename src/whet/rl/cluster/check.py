"""What a config would do on a cluster: where each part would go, and what is missing there. `whet cluster check`."""

from __future__ import annotations

from dataclasses import dataclass

from whet.errors import WhetError
from whet.rl.cluster.bundles import ClusterBundle, bundles, fit, lacking
from whet.rl.cluster.nodes import ClusterFacts, differences, lines
from whet.rl.cluster.survey import survey
from whet.rl.config import RunConfig
from whet.rl.placement import Placement


@dataclass(frozen=True, slots=True)
class ClusterCheck:
    """A cluster, and a config on it where one was given."""

    cluster: ClusterFacts
    placed: tuple[tuple[ClusterBundle, str | None], ...]
    """Each part of the run, and the address of a node that has room for it."""
    missing: tuple[str, ...]
    """A line each; with none of them the run would begin."""

    def lines(self) -> list[str]:
        """For people."""
        found = lines(self.cluster)
        if self.placed:
            width = max(len(bundle.part) for bundle, _ in self.placed)
            found += ["where a run would have room (Ray decides when it begins):", "  run: this machine"]
            found += [
                f"  {bundle.part:<{width}}  {bundle.describe()}: {node or 'nowhere'}" for bundle, node in self.placed
            ]
        return [*found, *(f"missing: {line}" for line in self.missing)]


def check_cluster(address: str, config: RunConfig | None = None, placed: Placement | None = None) -> ClusterCheck:
    """Look at a cluster, for a config and its placement where there is one. Raises `WhetError` where it cannot."""
    facts = survey(address, None if config is None else config.inference.python)
    if config is None or placed is None:
        return ClusterCheck(facts, (), tuple(differences(facts)))
    wanted = bundles(config, placed, next((node.address for node in facts.nodes if node.is_here), ""))
    where = fit(wanted, facts.nodes)
    missing = [*differences(facts), *lacking(wanted, facts.nodes), *_without_vllm(config, facts)]
    return ClusterCheck(facts, tuple((bundle, where[bundle.part]) for bundle in wanted), tuple(missing))


def missing_on_cluster(config: RunConfig, placed: Placement) -> list[str]:
    """What the run needs and the cluster of `ray_address` lacks, a line each."""
    assert config.deployment.ray_address is not None
    try:
        return list(check_cluster(config.deployment.ray_address, config, placed).missing)
    except WhetError as error:
        return [str(error)]


def _without_vllm(config: RunConfig, facts: ClusterFacts) -> list[str]:
    if config.engine != "vllm" or config.inference.base_url:
        return []
    without = [node.address for node in facts.nodes if not node.vllm and not node.problem]
    if not without:
        return []
    return [
        f"no vLLM on {', '.join(without)}: Ray may start a server on any node. Install it there (pip install "
        "'whet[vllm]'), or name its Python in inference.python or WHET_VLLM_PYTHON."
    ]
