"""The other rank of a pair, as the agent on its host tells of it, and the proof that both serve."""

from __future__ import annotations

import glob
import http.client
import json
import time
from dataclasses import dataclass, field
from urllib.parse import quote

import service
from common import ETC, VAR, Refusal, read_json

RUN = "/run/sparkwright"
PORT = 29400
ASK_TIMEOUT_S = 3
PROOF_S = 120
"""How long a worker that just started waits for a head that can be asked to generate."""


class UnreachableError(Refusal):
    """The other host's agent gives no answer."""


@dataclass(frozen=True)
class Pair:
    """What one rank knows of the pair, from its pair.json. key: of all that both must have equal.

    own, peer: addresses on the two rails, of this host and of the other. model: its folder.
    """

    name: str
    rank: int
    key: str
    own: tuple[str, ...]
    peer: tuple[str, ...]
    peer_host: str
    model: str = ""

    @classmethod
    def load(cls, name: str, folder: str | None = None) -> Pair | None:
        """None when the instance is served by one host alone. folder: default, what is in
        service."""
        data = read_json(f"{folder or f'{ETC}/{name}'}/pair.json")
        try:
            own, peer = tuple(map(str, data["own"])), tuple(map(str, data["peer"]))  # type: ignore[call-overload]
            rank, key, other = int(str(data["rank"])), str(data["key"]), str(data["peer_host"])
        except (KeyError, TypeError, ValueError):
            return None
        return cls(name, rank, key, own, peer, other, str(data.get("model", "")))

    @classmethod
    def coming(cls, name: str) -> Pair | None:
        """What the transaction that runs here brings; None when that is no half of a pair."""
        return cls.load(name, f"{VAR}/transaction/{name}/next")


@dataclass(frozen=True)
class Peer:
    """The other rank and its host at one moment.

    key: in service. start, partner: the ids of its last start and of the one that it joined.
    unit: state of its unit. phase, target: of the transaction that runs there ("": none), and the
    key that it brings. ended: how the last one ended. driver, weights: of its host (alike.py).
    """

    key: str = ""
    start: str = ""
    partner: str = ""
    unit: str = ""
    phase: str = ""
    target: str = ""
    stops: bool = False
    proven: bool = False
    ended: dict[str, object] = field(default_factory=dict)
    driver: str = ""
    weights: str = ""

    @classmethod
    def of(cls, answer: object) -> Peer:
        known = answer if isinstance(answer, dict) else {}
        return cls(**{name: known[name] for name in cls.__dataclass_fields__ if name in known})


def served() -> list[str]:
    """Names of the instances in service here that are one half of a pair."""
    return sorted(path.split("/")[-2] for path in glob.glob(f"{ETC}/*/pair.json"))


def ask(pair: Pair, path: str, rail: int = 0, timeout: float = ASK_TIMEOUT_S) -> tuple[int, object]:
    """Status and JSON that the other host's agent answers over one rail (0, 1).

    Raises UnreachableError when it does not answer.
    """
    own, peer = pair.own[rail], pair.peer[rail]
    connection = http.client.HTTPConnection(peer, PORT, timeout=timeout, source_address=(own, 0))
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read().decode())
    except (OSError, http.client.HTTPException, ValueError) as error:
        told = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise UnreachableError(
            f"{pair.peer_host} does not answer on rail {rail + 1} ({own} to {peer}): {told}"
        ) from None
    finally:
        connection.close()


def look(pair: Pair, rails: tuple[int, ...] = (0, 1)) -> Peer:
    """The other rank, asked over each of the rails. Raises UnreachableError when one gives no
    answer."""
    answer: object = None
    for rail in rails:
        status, answer = ask(pair, f"/{quote(pair.name)}", rail)
        if status == 404:
            answer = None
        elif status != 200:
            raise UnreachableError(f"the agent of {pair.peer_host} says {status}: {answer}")
    return Peer.of(answer)


def look_on_any(pair: Pair) -> Peer:
    """The other rank, over the first rail that works."""
    try:
        return look(pair, (0,))
    except UnreachableError:
        return look(pair, (1,))


def start_of(name: str) -> dict[str, object]:
    """What the last start of a rank here wrote: `{"id": …, "partner": …, "met": true}`."""
    return read_json(f"{RUN}/{name}/start.json")


def prove(
    name: str, server: service.Endpoint, patient: bool = True, limit_s: float | None = None
) -> str:
    """As service.prove; a worker, which answers nobody, has its head generate.

    Raises Refusal with what is missing.
    """
    pair = Pair.load(name)
    if pair is None or pair.rank == 0:
        return service.prove(f"vllm@{name}.service", server, patient, limit_s)
    begun = time.monotonic()
    while True:
        try:
            return _prove_by_head(pair, patient, limit_s)
        except Refusal:
            if not patient or time.monotonic() - begun > PROOF_S:
                raise
        time.sleep(2)


def _prove_by_head(pair: Pair, patient: bool, limit_s: float | None) -> str:
    head = look_on_any(pair)
    own = start_of(pair.name).get("id")
    if head.unit != "active" or head.partner != own:
        joined = "without" if head.partner != own else "with"
        raise Refusal(f"the head on {pair.peer_host} is {head.unit}, {joined} this rank")
    limit = limit_s or (service.GENERATION_TIMEOUT_S if patient else service.BUSY_AFTER_S)
    path = f"/prove/{quote(pair.name)}?limit={limit:g}"
    status, answer = ask(pair, path, timeout=limit + service.BUSY_LOOK_S + ASK_TIMEOUT_S)
    text = str(answer.get("text")) if isinstance(answer, dict) else str(answer)
    if status != 200:
        raise Refusal(f"the head on {pair.peer_host}: {text}")
    return f"{text}, by the head on {pair.peer_host}"
