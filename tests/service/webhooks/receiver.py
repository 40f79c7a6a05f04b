"""A receiver of webhooks on loopback, over HTTP or TLS, whose answers are scripted."""

from __future__ import annotations

import datetime
import ssl
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


@dataclass(frozen=True)
class Received:
    path: str
    headers: dict[str, str]
    body: str


class Receiver:
    """`answers` are statuses or functions of the handler, one for each request; then 200."""

    def __init__(self, *answers: Any, tls: tuple[Path, str] | None = None) -> None:
        self.requests: list[Received] = []
        self.names: list[str | None] = []
        self.connections = 0
        self.release = threading.Event()
        self.held = threading.Event()
        waiting = list(answers)
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                receiver.requests.append(Received(self.path, dict(self.headers), body))
                answer = waiting.pop(0) if waiting else 200
                if callable(answer):
                    answer(self)
                    return
                self.send_response(answer)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_POST

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def process_request(self, request: Any, client: Any) -> None:
                receiver.connections += 1
                super().process_request(request, client)

            def handle_error(self, *_: Any) -> None:
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.trust: ssl.SSLContext | None = None
        if tls is not None:
            context, self.trust = contexts(*tls)
            context.sni_callback = lambda _socket, name, _context: self.names.append(name)
            self.server.socket = context.wrap_socket(
                self.server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def hold(self, handler: Any) -> None:
        """An answer that does not come until `release`."""
        self.held.set()
        self.release.wait(100)

    def close(self) -> None:
        self.release.set()
        self.server.shutdown()
        self.server.server_close()


def contexts(folder: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's with a certificate for `name`, and a client's that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    encoding, kind = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / "server.pem").write_bytes(pem + key.private_bytes(encoding, kind, serialization.NoEncryption()))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server.pem")
    return server, ssl.create_default_context(cadata=pem.decode())
