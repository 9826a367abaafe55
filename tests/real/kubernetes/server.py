"""The API server of a stand-in: discovery, get, list, create, delete, and exec over WebSocket, over plain HTTP.

It answers the real kubectl. List items have no kind, as in a real cluster. There is no watch and no patch.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from real.kubernetes.cluster import KINDS, ApiError, Cluster
from real.kubernetes.processes import serve
from real.kubernetes.websocket import WebSocket, accept

PROTOCOL = "v5.channel.k8s.io"
GROUPS = {"v1": [name for name in KINDS if name != "statefulsets"], "apps/v1": ["statefulsets"]}
PATH = re.compile(r"/(api/v1|apis/apps/v1)(?:/namespaces/([^/]+))?/([a-z]+)(?:/([^/]+))?(/exec)?")


def resources(version: str) -> dict[str, Any]:
    verbs = ["create", "delete", "get", "list"]
    listed = [
        {"name": name, "singularName": "", "kind": KINDS[name], "namespaced": name != "namespaces", "verbs": verbs}
        for name in GROUPS[version]
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": listed}


def schema(version: str) -> dict[str, Any]:
    """Return as much of an OpenAPI document as says that the server validates the fields of manifests itself."""
    group, _, number = version.rpartition("/")
    paths = {
        f"/{name}": {
            "patch": {
                "parameters": [{"name": "fieldValidation", "in": "query"}],
                "x-kubernetes-group-version-kind": {"group": group, "version": number, "kind": KINDS[name]},
            }
        }
        for name in GROUPS[version]
    }
    return {"openapi": "3.0.0", "info": {"title": "stand-in", "version": "1"}, "paths": paths}


def discovery() -> dict[str, dict[str, Any]]:
    """Return the documents by which kubectl learns what there is."""
    apps = {"groupVersion": "apps/v1", "version": "v1"}
    where = {name: {"serverRelativeURL": f"/openapi/v3/{name}"} for name in ("api/v1", "apis/apps/v1")}
    return {
        "/version": {"major": "1", "minor": "32", "gitVersion": "v1.32.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": [{"name": "apps", "versions": [apps], "preferredVersion": apps}],
        },
        "/api/v1": resources("v1"),
        "/apis/apps/v1": resources("apps/v1"),
        "/openapi/v3": {"paths": where},
        "/openapi/v3/api/v1": schema("v1"),
        "/openapi/v3/apis/apps/v1": schema("apps/v1"),
    }


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    cluster: Cluster
    documents = discovery()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        try:
            if url.path in self.documents:
                self._send(200, self.documents[url.path])
            elif (match := PATH.fullmatch(url.path)) is None:
                raise ApiError(404, "NotFound", "the server could not find the requested resource")
            elif match[5]:
                self._exec(match[2], match[4], query)
            else:
                self._send(*self._result(match, query, body))
        except ApiError as exc:
            status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
            self._send(exc.code, {**status, "message": str(exc), "reason": exc.reason, "code": exc.code})

    def _result(self, match: re.Match[str], query: dict[str, list[str]], body: bytes) -> tuple[int, dict[str, Any]]:
        _, namespace, resource, name, _ = match.groups()
        if self.command == "POST":
            return 201, self.cluster.create(resource, namespace, json.loads(body))
        if self.command == "DELETE":
            return 200, self.cluster.delete(resource, namespace, name)
        if name is not None:
            return 200, self.cluster.get(resource, namespace, name)
        selectors = [query.get(key, [""])[0] for key in ("labelSelector", "fieldSelector")]
        found = self.cluster.list(resource, namespace, *selectors)
        items = [{key: one[key] for key in one if key not in ("kind", "apiVersion")} for one in found]
        version = "apps/v1" if resource == "statefulsets" else "v1"
        return 200, {"kind": f"{KINDS[resource]}List", "apiVersion": version, "metadata": {}, "items": items}

    def _exec(self, namespace: str, name: str, query: dict[str, list[str]]) -> None:
        self.cluster.check("create", "pods/exec", namespace)
        pod = self.cluster.processes(namespace, name)
        if query["container"][0] not in pod.containers:
            raise ApiError(400, "BadRequest", f"container {query['container'][0]} is not valid for pod {name}")
        offered = self.headers.get("Sec-WebSocket-Protocol", "")
        if PROTOCOL not in offered:
            raise ApiError(400, "BadRequest", f"this stand-in speaks {PROTOCOL} only")
        self.close_connection = True
        self.send_response(101)
        for header, value in {
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Accept": accept(self.headers["Sec-WebSocket-Key"]),
            "Sec-WebSocket-Protocol": PROTOCOL,
        }.items():
            self.send_header(header, value)
        self.end_headers()
        process = pod.open(query["container"][0], query["command"])
        self.cluster.execs[name] += 1
        cut_after = self.cluster.cuts.pop(0) if self.cluster.cuts else None
        serve(WebSocket(self.rfile, self.wfile), process, cut_after)  # type: ignore[arg-type]

    def _send(self, code: int, document: dict[str, Any]) -> None:
        data = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters: [{{name: stand-in, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
contexts: [{{name: stand-in, context: {{cluster: stand-in, user: me}}}}]
users: [{{name: me, user: {{}}}}]
current-context: stand-in
"""


@contextlib.contextmanager
def serving(cluster: Cluster, directory: Path) -> Iterator[Path]:
    """Serve the API of a cluster on a free port, and yield a kubeconfig for it."""
    handler = type("ClusterHandler", (Handler,), {"cluster": cluster})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    config = directory / "kubeconfig"
    config.write_text(KUBECONFIG.format(port=server.server_address[1]))
    try:
        yield config
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
