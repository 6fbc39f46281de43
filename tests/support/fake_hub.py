"""A small look-alike of the Hugging Face Hub for tests: a process of its own, on loopback only, all state in memory.

    python tests/support/fake_hub.py --repo model:org/name=DIR --repo dataset:org/name=DIR [--any-revision]

prints its URL and serves until it is ended; the unmodified clients use it through HF_ENDPOINT (read once, at import).
In tests: ``with FakeHub() as hub: run(..., env=hub.environment(home))``, ``hub.seed``, ``hub.fail``, ``hub.requests``.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import re
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

import yaml
from warm import COLD

KINDS = {"models": "model", "datasets": "dataset", "spaces": "space"}
LFS_SUFFIXES = (".safetensors", ".bin", ".pt", ".parquet", ".arrow", ".h5", ".onnx", ".gz")
LFS_SIZE = 10_000_000  # bytes
USER, ORGANISATION = "tester", "org"


# State


@dataclass(frozen=True)
class File:
    path: str
    content: bytes
    lfs: bool

    @cached_property
    def git_oid(self) -> str:
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {len(self.content)}\n"
        stored = pointer.encode() if self.lfs else self.content
        return hashlib.sha1(b"blob %d\0" % len(stored) + stored).hexdigest()

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def oid(self) -> str:
        """What the client compares: the ETag."""
        return self.sha256 if self.lfs else self.git_oid

    def entry(self) -> dict:
        lfs = {"lfs": {"oid": self.sha256, "size": len(self.content), "pointerSize": 134}} if self.lfs else {}
        return {"type": "file", "path": self.path, "oid": self.git_oid, "size": len(self.content)} | lfs

    def sibling(self, details: bool) -> dict:
        entry, row = self.entry(), {"rfilename": self.path}
        if details:
            row |= {"size": entry["size"], "blobId": entry["oid"]}
            if self.lfs:
                row["lfs"] = {"sha256": self.sha256, "size": entry["size"], "pointerSize": 134}
        return row


@dataclass(frozen=True)
class Commit:
    sha: str
    parent: str | None
    title: str
    message: str
    files: dict[str, File]
    date: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime()))


@dataclass
class Repo:
    kind: str
    id: str
    private: bool = False
    any_revision: bool = False
    refs: dict[str, str] = field(default_factory=dict)
    commits: dict[str, Commit] = field(default_factory=dict)

    def at(self, revision: str) -> Commit:
        for name in (revision, f"refs/heads/{revision}", f"refs/tags/{revision}"):
            if name in self.refs:
                return self.commits[self.refs[name]]
        if revision not in self.commits and self.any_revision and re.fullmatch("[0-9a-f]{40}", revision):
            self.commits[revision] = replace(self.at("main"), sha=revision)
        if revision not in self.commits:
            raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return self.commits[revision]

    def add(
        self, ref: str, parent: str | None, title: str, message: str, files: dict, sha: str | None = None
    ) -> Commit:
        sha = sha or hashlib.sha1(f"{self.kind} {self.id} {ref} {len(self.commits)}".encode()).hexdigest()
        self.commits[sha] = Commit(sha, parent, title, message, files)
        self.refs[ref] = sha
        return self.commits[sha]


class Refusal(Exception):
    """An HTTP error answer, with the Hub's own code in a header."""

    def __init__(self, status: int, message: str, code: str | None = None, **fields):
        super().__init__(message)
        self.status, self.code, self.fields = status, code, fields


@dataclass
class Fault:
    """The next ``count`` requests whose "METHOD /path" matches are answered ``status``, or cut after ``cut`` bytes of
    the answer or ``cut_body`` bytes of what is sent; one that is ``held`` waits for ``release`` before its body is
    read."""

    pattern: str
    count: int = 1
    status: int | None = None
    cut: int | None = None
    cut_body: int | None = None
    held: bool = False


@dataclass
class Hub:
    url: str = ""
    token: str | None = None  # may write, and read what is private; None: everybody may
    read_token: str | None = None
    any_revision: bool = False
    log: str | None = None
    repos: dict[tuple[str, str], Repo] = field(default_factory=dict)
    uploads: dict[str, bytes] = field(default_factory=dict)  # sha256 -> LFS content
    faults: list[Fault] = field(default_factory=list)
    requests: list[dict] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def create(self, kind: str, id: str, private: bool = False) -> Repo:
        repo = self.repos[kind, id] = Repo(kind, id, private, self.any_revision)
        attributes = File(".gitattributes", b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n", False)
        repo.add("refs/heads/main", None, "initial commit", "", {attributes.path: attributes})
        return repo

    def seed(self, kind: str, id: str, folder: str, commit: str | None = None, private: bool = False) -> Repo:
        """A repository with a folder's files, as one commit whose id may be given."""
        repo = self.create(kind, id, private)
        files = dict(repo.at("main").files)
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file():
                name, content = path.relative_to(folder).as_posix(), path.read_bytes()
                files[name] = File(name, content, is_lfs(name, len(content), content[:512]))
        repo.add("refs/heads/main", repo.refs["refs/heads/main"], "seeded", "", files, commit)
        return repo


def is_lfs(path: str, size: int, sample: bytes) -> bool:
    return path.endswith(LFS_SUFFIXES) or size > LFS_SIZE or b"\0" in sample


def front_matter(text: str) -> dict:
    """The metadata of a card; ValueError or yaml.YAMLError where they are not a mapping."""
    found = re.match(r"---[ \t]*\r?\n(.*?\r?\n)?---[ \t]*(\r?\n|$)", text, re.DOTALL)
    metadata = yaml.safe_load(found[1] or "") if found else None
    if not isinstance(metadata or {}, dict):
        raise ValueError("metadata must be a mapping")
    return json.loads(json.dumps(metadata or {}, default=str))


# Routes: "METHOD /path" -> a function (hub, request, *groups of the path, unquoted) -> answer (JSON, or Reply)


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict:
        return json.loads(self.body or b"{}")

    @property
    def token(self) -> str | None:
        return self.headers.get("authorization", "").removeprefix("Bearer ") or None


@dataclass
class Reply:
    content: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None  # of what a HEAD request asks about


ROUTES: list[tuple[re.Pattern, Callable]] = []
REPO = r"/api/(models|datasets|spaces)/((?:[^/]+/)?[^/]+?)"
FILES = r"/(?:(datasets|spaces)/)?((?:[^/]+/)?[^/]+?)"


def route(pattern: str) -> Callable:
    def add(function: Callable) -> Callable:
        ROUTES.append((re.compile(pattern), function))
        return function

    return add


def find(hub: Hub, request: Request, plural: str | None, id: str, write: bool = False) -> Repo:
    if write:
        may_write(hub, request)
    repo = hub.repos.get((KINDS[plural or "models"], id))
    if repo and repo.private and hub.token and request.token not in (hub.token, hub.read_token):
        raise Refusal(401, "Repository not found", "RepoNotFound")  # the Hub does not tell what exists
    if not repo:
        raise Refusal(404, "Repository not found", "RepoNotFound")
    return repo


def may_write(hub: Hub, request: Request) -> None:
    if hub.token and request.token != hub.token:
        if request.token and request.token == hub.read_token:
            raise Refusal(403, "This token may only read.")
        raise Refusal(401, "Invalid username or password.")


@route(r"POST /_control/(fail|release|seed)")
def control(hub: Hub, request: Request, verb: str) -> dict:
    if verb == "fail":
        hub.faults.append(Fault(**request.json))
    elif verb == "release":
        hub.released.set()
    else:
        hub.seed(**request.json)
    return {}


@route(r"GET /_control/requests")
def logged(hub: Hub, request: Request) -> list:
    return hub.requests


@route(r"GET /api/whoami-v2")
def whoami(hub: Hub, request: Request) -> dict:
    if hub.token and request.token not in (hub.token, hub.read_token):
        raise Refusal(401, "Invalid username or password.")
    role = "read" if hub.token and request.token == hub.read_token else "write"
    token = {"type": "access_token", "accessToken": {"displayName": "test", "role": role}}
    orgs = [{"type": "org", "name": ORGANISATION}]
    return {"type": "user", "id": "1", "name": USER, "fullname": USER, "isPro": False, "orgs": orgs, "auth": token}


@route(r"GET /api/agent-harnesses")
def harnesses(hub: Hub, request: Request) -> dict:
    return {"standardEnvVars": [], "harnesses": {}}


@route(r"POST /api/validate-yaml")
def validate_yaml(hub: Hub, request: Request) -> Reply:
    content, errors, warnings = request.json["content"], [], []
    try:
        if not front_matter(content):
            warnings.append({"message": "empty or missing yaml metadata in repo card"})
    except (ValueError, yaml.YAMLError) as error:
        errors.append({"message": str(error)})
    return as_json({"errors": errors, "warnings": warnings}, 400 if errors else 200)


@route(r"(POST|DELETE) /api/repos/(create|delete)")
def create_or_delete(hub: Hub, request: Request, method: str, verb: str) -> dict:
    may_write(hub, request)
    asked = request.json
    kind, id = asked.get("type") or "model", f"{asked.get('organization') or USER}/{asked['name']}"
    if id.split("/")[0] not in (USER, ORGANISATION):
        raise Refusal(403, f"You may not write to the namespace {id.split('/')[0]!r}.")
    url = f"{hub.url}/{'' if kind == 'model' else kind + 's/'}{id}"
    if verb == "delete":
        find(hub, request, kind + "s", id)
        del hub.repos[kind, id]
    elif (kind, id) in hub.repos:
        raise Refusal(409, f"You already created this {kind} repo: {id}", url=url)
    else:
        hub.create(kind, id, asked.get("visibility") == "private" or bool(asked.get("private")))
    return {"url": url, "id": id, "name": id}


@route(rf"GET {REPO}/refs")
def refs(hub: Hub, request: Request, plural: str, id: str) -> dict:
    repo = find(hub, request, plural, id)

    def named(prefix: str) -> list[dict]:
        return [
            {"name": ref.removeprefix(prefix), "ref": ref, "targetCommit": sha}
            for ref, sha in repo.refs.items()
            if ref.startswith(prefix)
        ]

    lists = {"branches": named("refs/heads/"), "tags": named("refs/tags/"), "pullRequests": named("refs/pr/")}
    return lists | {"converts": []}


@route(rf"GET {REPO}(?:/revision/([^/]+))?")
def info(hub: Hub, request: Request, plural: str, id: str, revision: str | None) -> dict:
    repo = find(hub, request, plural, id)
    commit = repo.at(revision or "main")
    card = commit.files.get("README.md")
    data = front_matter(card.content.decode()) if card else {}
    answer = {
        "_id": "0" * 24,
        "id": id,
        "modelId": id,
        "author": id.split("/")[0],
        "sha": commit.sha,
        "createdAt": commit.date,
        "lastModified": commit.date,
        "private": repo.private,
        "gated": False,
        "disabled": False,
        "downloads": 0,
        "likes": 0,
        "tags": data.get("tags") or [],
        "cardData": data or None,
        "siblings": [file.sibling("blobs" in request.query) for file in commit.files.values()],
    }
    answer |= {name: data[name] for name in ("pipeline_tag", "library_name", "model-index") if name in data}
    if "config.json" in commit.files:
        config = json.loads(commit.files["config.json"].content)
        answer["config"] = {name: config[name] for name in ("architectures", "model_type") if name in config}
    return answer


@route(rf"PUT {REPO}/settings")
def settings(hub: Hub, request: Request, plural: str, id: str) -> dict:
    repo = find(hub, request, plural, id, write=True)
    if "visibility" in request.json:
        repo.private = request.json["visibility"] == "private"
    return {}


@route(rf"POST {REPO}/preupload/([^/]+)")
def preupload(hub: Hub, request: Request, plural: str, id: str, revision: str) -> dict:
    stored, rows = find(hub, request, plural, id, write=True).at(revision).files, []
    for asked in request.json["files"]:
        path = asked["path"]
        mode = "lfs" if is_lfs(path, asked["size"], base64.b64decode(asked["sample"])) else "regular"
        oid = stored[path].oid if path in stored else None
        rows.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
    return {"files": rows}


@route(rf"POST {FILES}\.git/info/lfs/objects/batch")
def lfs_batch(hub: Hub, request: Request, plural: str | None, id: str) -> dict:
    find(hub, request, plural, id, write=True)
    rows = []
    for asked in request.json["objects"]:
        row = {"oid": asked["oid"], "size": asked["size"]}
        if asked["oid"] not in hub.uploads:
            upload, verify = (
                {"href": f"{hub.url}/_lfs/{asked['oid']}", "header": {}},
                {"href": f"{hub.url}/_lfs/verify"},
            )
            row["actions"] = {"upload": upload, "verify": verify}
        rows.append(row)
    return {"transfer": "basic", "objects": rows}


@route(r"PUT /_lfs/([0-9a-f]{64})")
def lfs_put(hub: Hub, request: Request, oid: str) -> Reply:
    if hashlib.sha256(request.body).hexdigest() != oid:
        raise Refusal(400, "The content does not have this sha256.")
    hub.uploads[oid] = request.body
    return Reply()


@route(r"POST /_lfs/verify")
def lfs_verify(hub: Hub, request: Request) -> dict:
    if len(hub.uploads.get(request.json["oid"], b"")) != request.json["size"]:
        raise Refusal(404, "This object was not uploaded.")
    return {}


@route(rf"POST {REPO}/commit/([^/]+)")
def commit(hub: Hub, request: Request, plural: str, id: str, revision: str) -> dict:
    repo = find(hub, request, plural, id, write=True)
    head, *operations = (json.loads(line) for line in request.body.splitlines() if line.strip())
    head, parent, pull_request = head["value"], repo.at(revision), None
    if request.query.get("create_pr"):
        number = 1 + sum(ref.startswith("refs/pr/") for ref in repo.refs)
        ref, pull_request = f"refs/pr/{number}", f"{hub.url}/{id}/discussions/{number}"
    else:
        ref = revision if revision.startswith("refs/") else f"refs/heads/{revision}"
        if ref not in repo.refs:
            raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        if not parent.sha.startswith(head.get("parentCommit") or ""):
            raise Refusal(412, "A commit has happened since. Please refresh and try again.")
    files = dict(parent.files)
    for operation in operations:
        key, path = operation["key"], operation["value"]["path"]
        if key == "file":
            files[path] = File(path, base64.b64decode(operation["value"]["content"]), False)
        elif key == "lfsFile":
            oid = operation["value"]["oid"]
            if oid not in hub.uploads:
                raise Refusal(400, f"The LFS object {oid} was not uploaded.")
            files[path] = File(path, hub.uploads[oid], True)
        elif key == "deletedFile":
            if files.pop(path, None) is None:
                raise Refusal(404, "A file with this name doesn't exist", "EntryNotFound")
        elif key == "deletedFolder":
            files = {name: file for name, file in files.items() if not name.startswith(path.rstrip("/") + "/")}
        else:
            raise Refusal(400, f"unknown operation {key!r}")
    made = repo.add(ref, parent.sha, head["summary"], head.get("description", ""), files)
    url = f"{hub.url}/{'' if plural == 'models' else plural + '/'}{id}/commit/{made.sha}"
    return {"success": True, "commitOid": made.sha, "commitUrl": url, "pullRequestUrl": pull_request}


@route(rf"GET {REPO}/tree/([^/]+)(?:/(.*))?")
def tree(hub: Hub, request: Request, plural: str, id: str, revision: str, folder: str | None) -> list:
    files = find(hub, request, plural, id).at(revision).files
    prefix = folder.strip("/") + "/" if folder else ""
    deep, entries = request.query.get("recursive", "").lower() == "true", {}
    for path, file in sorted(files.items()):
        if path.startswith(prefix):
            parts = path.removeprefix(prefix).split("/")
            for depth in range(1, len(parts) if deep else min(2, len(parts))):
                name = prefix + "/".join(parts[:depth])
                oid = hashlib.sha1(name.encode()).hexdigest()
                entries[name] = {"type": "directory", "path": name, "oid": oid, "size": 0}
            if deep or len(parts) == 1:
                entries[path] = file.entry()
    if prefix and not entries:
        raise Refusal(404, f"{folder} does not exist", "EntryNotFound")
    return list(entries.values())


@route(rf"POST {REPO}/paths-info/([^/]+)")
def paths_info(hub: Hub, request: Request, plural: str, id: str, revision: str) -> list:
    files = find(hub, request, plural, id).at(revision).files
    form = request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded")
    pairs = parse_qsl(request.body.decode()) if form else [("paths", path) for path in request.json["paths"]]
    rows = []
    for path in (value for name, value in pairs if name == "paths"):
        if path in files:
            rows.append(files[path].entry())
        elif any(name.startswith(path.rstrip("/") + "/") for name in files):
            rows.append({"type": "directory", "path": path, "oid": hashlib.sha1(path.encode()).hexdigest(), "size": 0})
    return rows


@route(rf"GET {REPO}/commits/([^/]+)")
def commits(hub: Hub, request: Request, plural: str, id: str, revision: str) -> list:
    repo, rows = find(hub, request, plural, id), []
    at = repo.at(revision)
    while at:
        rows.append(
            {"id": at.sha, "title": at.title, "message": at.message, "date": at.date, "authors": [{"user": USER}]}
        )
        at = repo.commits[at.parent] if at.parent else None
    return rows


@route(rf"(POST|DELETE) {REPO}/(branch|tag)/([^/]+)")
def change_ref(hub: Hub, request: Request, method: str, plural: str, id: str, what: str, name: str) -> dict:
    """A new branch is named in the path and starts at a revision in the body; with a new tag it is the reverse."""
    repo = find(hub, request, plural, id, write=True)
    start = request.json.get("startingPoint", "main") if what == "branch" else name
    new = request.json["tag"] if what == "tag" and method == "POST" else name
    ref = f"refs/{'heads' if what == 'branch' else 'tags'}/{new}"
    if method == "DELETE":
        if repo.refs.pop(ref, None) is None:
            raise Refusal(404, f"Invalid rev id: {new}", "RevisionNotFound")
    elif ref in repo.refs:
        raise Refusal(409, f"Reference already exists: {ref}")
    else:
        repo.refs[ref] = repo.at(start).sha
    return {}


@route(rf"(GET|HEAD) {FILES}/(?:resolve|raw)/([^/]+)/(.+)")
def resolve(hub: Hub, request: Request, method: str, plural: str | None, id: str, revision: str, path: str) -> Reply:
    at = find(hub, request, plural, id).at(revision)
    headers = {"X-Repo-Commit": at.sha, "Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
    file = at.files.get(path)
    if file is None:
        missing = {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"}
        return Reply(b"Entry not found", 404, headers | missing)
    content, size = file.content, len(file.content)
    headers["ETag"] = f'"{file.oid}"'
    if file.lfs:
        headers |= {"X-Linked-Etag": f'"{file.oid}"', "X-Linked-Size": str(size)}
    asked = re.fullmatch(r"bytes=(\d*)-(\d*)", request.headers.get("range", ""))
    if method == "HEAD" or not asked:
        return Reply(content, 200, headers)
    first = int(asked[1]) if asked[1] else size - int(asked[2])
    last = min(int(asked[2]), size - 1) if asked[1] and asked[2] else size - 1
    if first > last:
        return Reply(b"", 416, headers | {"Content-Range": f"bytes */{size}"})
    return Reply(content[first : last + 1], 206, headers | {"Content-Range": f"bytes {first}-{last}/{size}"})


# HTTP


def as_json(answer: object, status: int = 200, headers: dict[str, str] | None = None) -> Reply:
    return Reply(json.dumps(answer).encode(), status, {"Content-Type": "application/json"} | (headers or {}))


def answer(hub: Hub, request: Request) -> Reply:
    line = f"{request.method} {request.path}"
    try:
        for pattern, function in ROUTES:
            if found := pattern.fullmatch(line):
                groups = [part if part is None else unquote(part) for part in found.groups()]
                with hub.lock:
                    result = function(hub, request, *groups)
                return result if isinstance(result, Reply) else as_json(result)
        raise Refusal(404, f"fake hub: no route for {line}")
    except Refusal as refusal:
        headers = {"X-Error-Message": str(refusal)} | ({"X-Error-Code": refusal.code} if refusal.code else {})
        return as_json({"error": str(refusal), **refusal.fields}, refusal.status, headers)
    except Exception as error:  # a mistake in this file must reach the test, not hang its client
        return as_json({"error": f"fake hub: {type(error).__name__}: {error}"}, 500)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def handle_any(self) -> None:
        parts = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        fault = self.take_fault(f"{self.command} {unquote(parts.path)}")
        if fault and fault.held:
            self.note(Request(self.command, parts.path, {}, headers, b""), Reply(status=0))
            self.hub.released.wait()
        if fault and fault.cut_body is not None:
            self.rfile.read(fault.cut_body)
            self.note(Request(self.command, parts.path, {}, headers, b""), Reply(status=0))
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        request = Request(self.command, parts.path, dict(parse_qsl(parts.query)), headers, self.read_body())
        if fault and fault.status:
            reply = as_json({"error": "injected fault"}, fault.status, {"X-Error-Message": "injected fault"})
        else:
            reply = answer(self.hub, request)
        self.note(request, reply)
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply.content)))
        self.end_headers()
        cut = fault.cut if fault else None
        if self.command != "HEAD":
            self.wfile.write(reply.content[:cut])
        self.close_connection |= cut is not None

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_any

    def read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def take_fault(self, line: str) -> Fault | None:
        with self.hub.lock:
            for fault in self.hub.faults:
                if fault.count > 0 and "/_control/" not in line and re.search(fault.pattern, line):
                    fault.count -= 1
                    return fault
        return None

    def note(self, request: Request, reply: Reply) -> None:
        """Before the answer goes out, so that whoever has the answer finds its request in the log."""
        if request.path.startswith("/_control/"):
            return
        row = {"method": request.method, "path": unquote(request.path), "query": request.query}
        row |= {"status": reply.status, "bytes": len(request.body), "token": request.token is not None}
        with self.hub.lock:
            self.hub.requests.append(row)
            if self.hub.log:
                with open(self.hub.log, "a", encoding="utf-8") as log:
                    log.write(json.dumps(row) + "\n")

    def log_message(self, *_) -> None:
        """Quiet: the log is the JSON lines."""


# The test's side


class FakeHub:
    """The server as a child process; options are those of the command line, ``--any-revision`` and the like."""

    def __init__(self, *options: str):
        self.options = options

    def __enter__(self) -> FakeHub:
        command = [COLD, __file__, *self.options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().strip()
        if not self.url:
            raise RuntimeError(f"the fake hub did not start (exit code {self.process.wait()})")
        return self

    def __exit__(self, *_) -> None:
        self.process.terminate()
        self.process.communicate()

    def environment(self, home: str | Path, token: str | None = None) -> dict[str, str]:
        """For a client process: this server, and its own empty cache and login."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
        names = ["DISABLE_XET", "DISABLE_TELEMETRY", "DISABLE_UPDATE_CHECK", "DISABLE_PROGRESS_BARS"]
        own = {"HF_ENDPOINT": self.url, "HF_HOME": str(home)} | {f"HF_HUB_{name}": "1" for name in names}
        return inherited | own | ({"HF_TOKEN": token} if token else {})

    def call(self, path: str, **fields) -> object:
        body = json.dumps(fields).encode() if fields else None
        with urllib.request.urlopen(self.url + path, body) as reply:
            return json.load(reply)

    def seed(self, kind: str, id: str, folder: str | Path, commit: str | None = None, private: bool = False) -> None:
        self.call("/_control/seed", kind=kind, id=id, folder=str(folder), commit=commit, private=private)

    def fail(self, pattern: str, count: int = 1, **how: float) -> None:
        """See `Fault`."""
        self.call("/_control/fail", pattern=pattern, count=count, **how)

    def release(self) -> None:
        """Let go on what is held."""
        self.call("/_control/release", all=True)

    def requests(self) -> list[dict]:
        """All so far: method, path, query, status, bytes, token (whether one was sent)."""
        return self.call("/_control/requests")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--token", help="the token that may write (default: everybody may)")
    parser.add_argument("--read-token", help="a token that may only read")
    parser.add_argument("--repo", action="append", default=[], metavar="KIND:ORG/NAME[@COMMIT]=DIR")
    parser.add_argument("--any-revision", action="store_true", help="an unknown commit id names the state of main")
    parser.add_argument("--log", help="append each request to this file, as JSON lines")
    options = parser.parse_args()
    server = ThreadingHTTPServer(("127.0.0.1", options.port), Handler)
    url = f"http://127.0.0.1:{server.server_port}"
    hub = Handler.hub = Hub(url, options.token, options.read_token, options.any_revision, options.log)
    for text in options.repo:
        found = re.fullmatch(r"(model|dataset|space):([^@=]+)(?:@([0-9a-f]{40}))?=(.+)", text)
        if not found:
            parser.error(f"--repo {text}: expected KIND:ORG/NAME[@COMMIT]=DIR, KIND is model, dataset or space")
        kind, id, commit, folder = found.groups()
        hub.seed(kind, id, folder, commit)
    print(url, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
