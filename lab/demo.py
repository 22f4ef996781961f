"""The last step of scripts/demo: ask the simulated Spark for a completion and print it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys

from lab import hosts, record

PORT = 8000
_BODY = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Hello, Spark. Who are you?"}],
    "max_tokens": 24,
}


def main(name: str = "lab") -> int:
    """Print a completion of the first host of a lab, its address, and how to go on."""
    lab = record.require(name)
    host = lab.hosts[0]
    url = f"http://127.0.0.1:{PORT}/v1/chat/completions"
    curl = ["curl", "-sS", "-m", "60", "-H", "Content-Type: application/json", "-d", "@-", url]
    done = subprocess.run(
        [*hosts.ssh_command(lab, host), shlex.join(curl)],
        input=json.dumps(_BODY),
        capture_output=True,
        text=True,
    )
    try:
        answer = json.loads(done.stdout)
        text = answer["choices"][0]["message"]["content"]
        tokens = answer["usage"]["completion_tokens"]
    except (ValueError, LookupError, TypeError):
        print(f"demo: {host.name} gave no completion: {done.stdout}{done.stderr}", file=sys.stderr)
        return 1
    folder = os.path.relpath(record.folder(name))
    print(f"""
{host.name} answers, on its own {url}:

  you:   {_BODY["messages"][0]["content"]}
  tiny:  {text}

{tokens} tokens from vLLM {_version(lab, host)}, served by systemd. The weights are random,
and so are the words; everything else is what a Spark with a real model runs.

The server listens on the Spark only. To reach it from here, in a second terminal:
  ssh -i {folder}/id_ed25519 -o UserKnownHostsFile={folder}/known_hosts \\
      -N -L {PORT}:127.0.0.1:{PORT} {lab.user}@{host.address}
  curl http://127.0.0.1:{PORT}/v1/models

Go on:
  .venv/bin/pyinfra -y inventory/lab.py deploy.py    again: nothing changes
  .venv/bin/sparkwright lab ssh {host.name}              look around
  .venv/bin/sparkwright lab fault --list             break something, deploy, read what it says
  .venv/bin/sparkwright lab down                     take it down
  docs/quick-start.md                                your own Spark""")
    return 0


def _version(lab: record.Record, host: record.Host) -> str:
    command = [*hosts.ssh_command(lab, host), "curl", "-sS", f"http://127.0.0.1:{PORT}/version"]
    done = subprocess.run(command, capture_output=True, text=True)
    try:
        return str(json.loads(done.stdout)["version"])
    except (ValueError, LookupError):
        return "unknown"


if __name__ == "__main__":
    sys.exit(main())
