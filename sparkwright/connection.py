"""What to do about a connection that fails."""

from __future__ import annotations


def advice(error: str, address: str, port: int, user: str | None, key: str | None) -> str:
    """A sentence with the fields that matter, their values, and the way to try them by hand.

    error: pyinfra's message. address: what is connected to, a name or an address.
    """
    options = (f" -i {key}" if key else "") + (f" -p {port}" if port != 22 else "")
    by_hand = f"ssh{options} {user + '@' if user else ''}{address}"
    low = error.lower()
    if "no such private key" in low or "invalid key" in low:
        return f"ssh_key = {key!r}: correct it in the inventory or in group_data/all.py"
    if "no such file" in low and "known_hosts" in low:
        return "ssh keeps host keys in a folder that is not there yet: mkdir -m 700 ~/.ssh"
    if "resolve" in low:
        return (
            f"the name {address!r} resolves nowhere: correct it in the inventory, or give the "
            'host its address, ("name", {"ssh_hostname": "192.0.2.7"})'
        )
    if "host key" in low:
        return (
            f"the host key of {address} is not known, or another than before: when you trust it, "
            f"ssh-keygen -R {address}, then connect once by hand: {by_hand}"
        )
    if "authentication" in low or "private key" in low or "passphrase" in low:
        return (
            f"ssh_user = {user!r}, ssh_key = {key!r} is not let in: try {by_hand}; bring the key "
            f"there with ssh-copy-id, or correct ssh_user and ssh_key (group_data/all.py)"
        )
    return (
        f"nothing answers at {address} port {port}: is it on, is the address right "
        f"(ssh_hostname, ssh_port)? Try {by_hand}"
    )
