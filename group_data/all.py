"""What holds for every host, unless its inventory entry or a group says otherwise."""

# How to get in. A host may override each: ("spark-1", {"ssh_user": "me"}).
ssh_user = "nvidia"
_sudo = True

# The engine: vLLM and everything it needs, locked with hashes (releases/).
release = dict(lock="releases/vllm-0.27.1-aarch64.txt", python="3.12", cuda="13")

# How a fleet changes: a canary, then a quarter of the members at a time, in inventory order; after
# one failure the rest stays as it is (docs/rollout.md).
rollout = dict(canary=1, wave="25%", failures=1)
