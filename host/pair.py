"""Wait for the other rank before this one starts, and write down its network's environment.

usage: pair.py NAME

Runs as ExecStartPre of each start of vllm@NAME.service, as root, for as long as it takes: after a
power cut the other Spark may come back an hour later. Both ranks are started by this at the same
moment, with the same settings, or not at all. What it waits for is in the unit's journal.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import time

import alike
import fabric
import rails
from common import ETC, HEARTBEAT_S, Refusal, main, read_json, say, write
from pairing import RUN, Pair, look


class Handshake:
    """One start of a rank, and the start of the other one that it joins."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.own, self.partner = secrets.token_hex(8), ""
        self.folder = f"{RUN}/{pair.name}"
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        self._tell()

    def _tell(self, met: bool = False) -> None:
        start = {"id": self.own, "partner": self.partner, "met": met}
        write(f"{self.folder}/start.json", json.dumps(start) + "\n")

    def step(self) -> str:
        """What is missing; "" when both ranks have named each other."""
        try:
            self.environment = rails.environment(read_json(f"{ETC}/fabric.json"))
            if not fabric.firewall_is_up():  # somebody flushed all rules
                fabric.load_firewall()
            other = look(self.pair)
        except Refusal as problem:
            return str(problem)
        if not other.key:
            return f"nothing of {self.pair.name} is in service on {self.pair.peer_host}"
        if other.key != self.pair.key:
            return f"{self.pair.peer_host} has other settings in service; a deploy makes them equal"
        different = alike.difference(self.pair, other)
        if different:
            return different
        if other.start != self.partner:
            self.partner = other.start
            self._tell()
        if self.partner and other.partner == self.own:
            return ""
        return f"the rank on {self.pair.peer_host} is {other.unit or 'not there'}"

    def finish(self) -> None:
        """Write what the engine and ready.py are started with."""
        values = {**self.environment, "SPARKWRIGHT_START_ID": self.own}
        text = "".join(f'{name}="{value}"\n' for name, value in sorted(values.items()))
        write(f"{self.folder}/rank.env", text)
        self._tell(met=True)


def program() -> None:
    (name,) = sys.argv[1:]
    pair = Pair.load(name)
    if pair is None:
        raise Refusal(f"{ETC}/{name}/pair.json is missing or unreadable: deploy it again")
    handshake, begun, said, spoken = Handshake(pair), time.monotonic(), "", 0.0
    while missing := handshake.step():
        now = time.monotonic()
        if missing != said or now - spoken >= HEARTBEAT_S:
            say(f"waiting for the other rank, {now - begun:.0f} s: {missing}")
            said, spoken = missing, now
        time.sleep(0.5)
    handshake.finish()
    say(f"rank {pair.rank} starts, together with {pair.peer_host}")


if __name__ == "__main__":
    main(program)
