"""Members of a pool in processes of their own: an embedded engine, and a vLLM server. Both sample whet/tiny."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

from whet.errors import EndpointDownError
from whet.inference.model_names import resolve_model
from whet.inference.protocol import OnTokens, Sample, SampleRequest, WrappedEngine
from whet.inference.requests import SampleLostError
from whet.inference.vllm.members import ServerOptions, VllmMember
from whet.rl.supervision.engine_process import EngineProcess


class NotedEngine(WrappedEngine):
    """Another engine. Notes what has arrived of each streamed answer in progress, and had of those that were lost."""

    def __init__(self, engine: Any, member: ProcessMember) -> None:
        super().__init__(engine)
        self._member = member

    async def sample(self, request: SampleRequest, *, on_tokens: OnTokens | None = None) -> Sample:
        heard: list[int] = []
        self._member.arrived.append(heard)

        def hear(ids: list[int]) -> None:
            heard.extend(ids)
            assert on_tokens is not None
            on_tokens(ids)

        try:
            sample = await super().sample(request, on_tokens=None if on_tokens is None else hear)
        except EndpointDownError as error:
            self._member.lost.append(len(error.part.ids) if isinstance(error, SampleLostError) else 0)
            raise
        finally:
            self._member.arrived[:] = [other for other in self._member.arrived if other is not heard]
        return sample


class ProcessMember:
    """Its process has a short directory, which goes with it."""

    engine: NotedEngine
    directory: tempfile.TemporaryDirectory[str]

    def __init__(self, name: str) -> None:
        self.name = name
        self.pids: list[int] = []  # of all its processes so far
        self.lost: list[int] = []
        self.arrived: list[list[int]] = []

    async def start(self) -> NotedEngine:
        self.directory = tempfile.TemporaryDirectory()
        self.engine = NotedEngine(await self.start_in(Path(self.directory.name)), self)
        return self.engine

    async def stop(self) -> None:
        await self.end()
        self.directory.cleanup()

    def kill(self) -> None:
        os.kill(self.pids[-1], signal.SIGKILL)

    async def start_in(self, directory: Path) -> Any:
        raise NotImplementedError

    async def end(self) -> None:
        raise NotImplementedError


class EmbeddedMember(ProcessMember):
    process: EngineProcess

    async def start_in(self, directory: Path) -> Any:
        self.process = EngineProcess(resolve_model("whet/tiny"), directory, threads=1)
        self.pids.append(self.process.pid)
        return await asyncio.to_thread(self.process.engine, EndpointDownError)

    async def end(self) -> None:
        self.process.close()

    def failure(self) -> str | None:
        return self.process.failure()


class VllmServerMember(ProcessMember):
    member: VllmMember

    def __init__(self, name: str, python: Path) -> None:
        super().__init__(name)
        self._options = ServerOptions(
            python=python, on_cuda=False, max_context=512, threads=1, flags={"kv-cache-memory-bytes": "64M"}
        )

    async def start_in(self, directory: Path) -> Any:
        self.member = VllmMember(self.name, resolve_model("whet/tiny"), directory, self._options)
        engine = await self.member.start()
        server = self.member._server
        assert server is not None
        assert server.pid is not None
        self.pids.append(server.pid)
        return engine

    async def end(self) -> None:
        await self.member.stop()

    def failure(self) -> str | None:
        return self.member.failure()
