"""`python nemo_drive.py ENV_URL MODEL_URL < rows`: NeMo-Gym's gymnasium agent and model server play rows, and print.

The agent, the model server and their client are nemo-gym's; each row's result is a line of JSON.
"""

import asyncio
import json
import sys
from types import SimpleNamespace
from urllib.parse import urlsplit

import uvicorn
from nemo_gym.config_types import BaseServerConfig, ModelServerRef, ResourcesServerRef
from nemo_gym.server_utils import GlobalAIOHTTPAsyncClientConfig, ServerClient, set_global_aiohttp_client
from omegaconf import OmegaConf
from responses_api_agents.gymnasium_agent.app import GymnasiumAgent, GymnasiumAgentConfig, GymnasiumAgentRunRequest
from responses_api_models.openai_model.app import SimpleModelServer, SimpleModelServerConfig

env, model = (urlsplit(url) for url in sys.argv[1:])


def at(port):
    return {"host": "127.0.0.1", "port": port, "entrypoint": "app.py"}


async def started(app):
    """The port of an app that is served on this event loop, whose client both share."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0)
    return server.servers[0].sockets[0].getsockname()[1], serving


async def main():
    set_global_aiohttp_client(GlobalAIOHTTPAsyncClientConfig())
    config = OmegaConf.create({"whet": {"resources_servers": {"whet": at(env.port)}}})
    client = ServerClient(head_server_config=BaseServerConfig(host="127.0.0.1", port=0), global_config_dict=config)
    settings = {"openai_base_url": f"{model.geturl()}/v1", "openai_api_key": "none", "openai_model": "scripted"}
    policy = SimpleModelServer(config=SimpleModelServerConfig(**at(0), name="policy", **settings), server_client=client)
    port, serving = await started(policy.setup_webserver())
    config.policy = {"responses_api_models": {"openai_model": at(port)}}
    refs = {
        "resources_server": ResourcesServerRef(type="resources_servers", name="whet"),
        "model_server": ModelServerRef(type="responses_api_models", name="policy"),
    }
    agent = GymnasiumAgent(config=GymnasiumAgentConfig(**at(0), name="agent", **refs), server_client=client)
    rows = [GymnasiumAgentRunRequest.model_validate_json(line) for line in sys.stdin]

    request = SimpleNamespace(cookies={})
    results = await asyncio.gather(*(agent.run(request, row) for row in rows))
    response = await client.post("whet", "/aggregate_metrics", json={"verify_responses": [
        {"reward": result.reward} for result in results]})  # fmt: skip
    metrics = await response.json()
    serving.cancel()
    for result in results:
        kinds = [item.type for item in result.response.output]
        print(json.dumps([result.reward, result.terminated, kinds, metrics["agent_metrics"]["mean/reward"]]))


asyncio.run(main())
