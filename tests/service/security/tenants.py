"""Two tenants of one service: all that ann's organisation holds has a canary in it, and eve has things of her own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sqlalchemy import update

from whet.hub.storage.database import database_now
from whet.rl.storage.run_directory import write_step
from whet.service.storage.tables import AttemptRow, DeploymentRow, RunRow, UsageDay
from whet.system.files import json_line

CANARY = "canary-of-another-tenant"  # in no request
SECRET = "canary-secret-value-5d41402a"  # in no answer at all
HIDDEN = "hidden-game"
URL = "https://hooks.example.com/"


class Tenants:
    """`acme` is ann's, and max is its maintainer, mel a member, vic a viewer; bob has nothing."""

    def __init__(self, service: Any, packages: Any, config: str) -> None:
        self.service, self.packages, self.config = service, packages, config
        for user in ("max", "mel", "vic"):
            service.user(user)
        service.organisation("acme", "ann", max="maintainer", mel="member", vic="viewer")
        self.private = self._environments()
        self.file = service.blob("ann", f"# {CANARY}\n".encode())
        self.run = self._submit("ann", "acme", CANARY)
        self.own = self._submit("eve", "eve", "own")
        self.hook = service.ok("POST", "/webhooks", "ann", json=self._hook("acme", CANARY))["id"]
        self.own_hook = service.ok("POST", "/webhooks", "eve", json=self._hook("eve", "own"))["id"]
        service.ok("PUT", f"/secrets/acme/{self.secret_name}", "ann", json={"value": SECRET})
        service.ok("PUT", "/secrets/eve/OWN", "eve", json={"value": SECRET})
        self.token = service.ok("POST", "/tokens", "ann", json={"name": CANARY})["id"]
        self.deployment = self._deployment("d" * 16, "acme", self.run, CANARY)
        self.own_deployment = self._deployment("e" * 16, "eve", self.own, "own")
        for run, text in ((self.run, CANARY), (self.own, "own")):
            self._files(run, text)
            self._attempt(run, text)

    def renew(self) -> None:
        """Where eve's run was deleted, or its state was changed, there is another one."""
        answer = self.service.ask("GET", f"/runs/{self.own}", "eve")
        if answer.status_code != 200 or answer.json()["state"] != "failed":
            self.own = self._submit("eve", "eve", "own")
            self._files(self.own, "own")
            self._attempt(self.own, "own")
        if self.service.ask("GET", f"/webhooks/{self.own_hook}/deliveries", "eve").status_code != 200:
            self.own_hook = self.service.ok("POST", "/webhooks", "eve", json=self._hook("eve", "own"))["id"]

    @property
    def secret_name(self) -> str:
        return CANARY.upper().replace("-", "_")

    def ids(self) -> dict[str, list[Any]]:
        """What is there, by the names of parameters and of fields."""
        sha = self.file
        files = [file["filename"] for file in self.private["files"]]
        return {
            "owner": ["acme", "eve", "ann", "bob", "no-one-here"],
            "user": ["ann", "eve", "bob", "max"],
            "run": [self.run, self.own, "0" * 16],
            "runs": [self.run, self.own],
            "number": ["0", "1", "7"],
            "step": ["1", "2", 2, None],
            "name": [HIDDEN, "word-game", "run", "OWN", self.secret_name.lower(), "KEY"],
            "names": ["reward/", "loss", "reward/mean,loss"],
            "package": [HIDDEN, "word-game", "numpy"],
            "version": ["1.0.0", "2.0.0"],
            "filename": files,
            "path": ["hidden_game.py", "whet.css", "../app.py"],
            "identity": [self.private["action"]["id"], self.run],
            "action": [self.private["action"]["id"]],
            "token": [self.token, self.service.tokens["eve"]],
            "webhook": [self.hook, self.own_hook],
            "deployment": [self.deployment, self.own_deployment],
            "sha256": [sha, "0" * 64],
            "key": ["KEY", "0123456789abcdef"],
            "kind": ["training", "evaluation", "sft", "search", "wheel"],
            "state": ["finished", "queued", "failed"],
            "config": [self.config, "max_steps = [", f'[[env]]\nid = "acme/{HIDDEN}@1.0.0"\n'],
            "files": [{}, {"a.py": sha}, {"../../x": sha}, {"/etc/passwd": sha}],
            "environments": [[], [f"acme/{HIDDEN}@1.0.0"], ["eve/word-game@1.0.0"]],
            "secrets": [{}, {"KEY": "value-of-a-key"}],
            "caps": [{}, {"seconds": 10.0}],
            "needs": [{}, {"cores": 1}],
            "priority": [0, 5],
            "url": [URL, "http://127.0.0.1/", "http://169.254.169.254/latest"],
            "events": [["run.finished"]],
            "value": ["text"],
            "what": ["adapter", "model", "checkpoint"],
            "environment": ["reverse-text", CANARY[:6]],
            "part": ["train", "eval"],
            "sort": ["reward", "step", "advantage"],
            "generation": ["0", "1"],
            "limit": ["1", "200"],
            "cursor": ["0", "1"],
            "search": ["game", "canary", "%", "own"],
            "level": ["INFO", "WARNING"],
            "points": ["10", "1000"],
            "after": ["0", "1"],
            "role": ["viewer", "owner"],
            "scope": ["read", "push", "admin"],
            "visibility": ["PUBLIC", "PRIVATE"],
            "archive": ["wheel", "sdist"],
            "days": [1, 30],
            "next": ["/runs", "//evil.invalid/", "https://evil.invalid/"],
            "code": ["BCDF-GHJK"],
        }  # fmt: skip

    def _environments(self) -> Any:
        service, packages = self.service, self.packages
        secret = packages.Wheel(name=HIDDEN, code=f"# {CANARY}\n", readme=f"# {CANARY}\n")
        described = packages.metadata(HIDDEN, "1.0.0").replace(b"A game of words", CANARY.encode())
        secret.files[f"{secret.info}/METADATA"] = described
        assert service.push("ann", "acme", secret, packages.sdist(HIDDEN)).status_code == 201
        for kind, value in (("secrets", SECRET), ("variables", CANARY)):
            service.ok("PUT", f"/environments/acme/{HIDDEN}/{kind}/KEY", "ann", json={"value": value})
        assert service.push("eve", "eve", packages.Wheel(), packages.sdist(), visibility="PUBLIC").status_code == 201
        return service.ok("GET", f"/environments/acme/{HIDDEN}/versions/1.0.0", "ann")

    def _submit(self, user: str, owner: str, text: str) -> str:
        files = {"extra.py": self.file} if text == CANARY else {}
        config = f"# {text}\n{self.config}"
        run = self.service.submit(
            user, owner, config, name=text, files=files, secrets={"RUN_SECRET": SECRET}, skip_action_check=True
        )
        return str(run["id"])

    def _hook(self, owner: str, text: str) -> dict[str, Any]:
        return {"owner": owner, "url": URL + text, "events": ["run.finished", "run.queued"]}

    def _deployment(self, identity: str, owner: str, run: str, name: str) -> str:
        def add(session: Any, now: float) -> None:
            values = {"id": identity, "owner": owner, "user": owner, "run_id": run, "step": 2, "base": "whet/tiny"}
            counts = {"requests": 0, "input_tokens": 0, "output_tokens": 0, "created_at": now}
            session.add(DeploymentRow(**values, **counts, name=name, adapter=True, state="ready", reason=name))

        self.change(add)
        return identity

    def change(self, function: Any) -> None:
        with self.service.service.hub.database.write() as session:
            function(session, database_now(session))

    def _attempt(self, run: str, text: str) -> None:
        """The run has ended, with a reason and the use of a day."""

        def end(session: Any, now: float) -> None:
            values = {"state": "failed", "reason": text, "step": 2, "attempt": 1, "started_at": now, "ended_at": now}
            session.execute(update(RunRow).where(RunRow.id == run).values(**values))
            place = {"runner_id": text[:40], "host": text, "boot_id": text, "pid": 1, "process_began": "1"}
            times = {"lease_until": now, "started_at": now, "ended_at": now, "charged_until": now}
            session.add(
                AttemptRow(run_id=run, number=1, fence=1, state="ended", exit_code=1, outcome=text, **place, **times)
            )
            if text == CANARY:
                zero = {"core_seconds": 1.0, "device_seconds": 0.0, "run_seconds": 77_777.5, "tokens": 1, "cost": 1.0}
                use = {"requests": 1, "input_tokens": 1, "output_tokens": 1}
                session.add(UsageDay(owner="acme", day="2026-11-20", **zero, **use))

        self.change(end)

    def _files(self, run: str, text: str) -> None:
        """What a run leaves, with `text` wherever there is text."""
        folder: Path = self.service.service.data / "runs" / run
        directory = folder / "run"
        (directory / "rollouts").mkdir(parents=True)
        (directory / "logs").mkdir()
        rows = [
            {
                "group": str(number),
                "environment": text,
                "example_id": number,
                "prompt": [{"role": "user", "content": text}],
                "completion": [{"role": "assistant", "content": text}],
                "answer": text,
                "reward": 0.5,
                "metrics": {text: 0.5},
                "advantage": 0.1,
                "stop_condition": text,
                "error": None,
                "is_truncated": False,
                "turns": [{"prompt_start": 0, "prompt_ids": [257, 266], "completion_ids": [101, 102],
                           "completion_logprobs": [-0.1, -0.2], "policy_version": [[1, 2]]}],
            }
            for number in range(4)
        ]  # fmt: skip
        for step in (1, 2):
            write_step(directory / "rollouts", step, rows)
        metrics = [{"step": step, "reward/mean": 0.5, f"reward/{text}": 0.5} for step in (1, 2)]
        (directory / "metrics.jsonl").write_text("".join(map(json_line, metrics)))
        (directory / "config.toml").write_text(
            f"{self.config}\n# {text}\n".replace("[sampling]", f'name = "{text}"\n[sampling]')
        )
        (directory / "status.json").write_text(json.dumps({"state": "failed", "step": 2, "last_error": text}))
        (directory / "errors.jsonl").write_text(
            json_line({"step": 1, "environment": text, "error": text, "rollouts": 1})
        )
        (directory / "logs" / "run.log").write_text(f"2026-11-21T17:40:02+0000 INFO {text}\n")
        (directory / "checkpoints" / "step_2").mkdir(parents=True)
        (directory / "checkpoints" / "step_2" / "notes.txt").write_text(text)
        (folder / "attempts" / "1").mkdir(parents=True)
        (folder / "attempts" / "1" / "output.log").write_text(text)
        (folder / "submission").mkdir()
        (folder / "submission" / "config.toml").write_text(f"# {text}\n{self.config}")
