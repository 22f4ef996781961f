"""API keys and hub tokens that nobody reads, and weights that are fetched, resumed and checked."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.lab.helpers import BIN, ROOT, STANDIN, Spark, inventory, pyinfra

pytestmark = pytest.mark.lab

KEY = "sk-test-5f0c3b1e9a7d"
TOKEN = "hf_testTokenThatNobodyMaySee"
MODEL, COMMIT = "acme/tiny-model", "0123456789abcdef0123456789abcdef01234567"


def everything_said(file: Path, env: dict[str, str]) -> str:
    """All output of runs with every verbosity, with diffs, with JSON."""
    said = ""
    for options in (["-vvv", "--debug"], ["--diff"], ["--json"]):
        command = [BIN / "pyinfra", "-y", *options, file, "deploy.py"]
        done = subprocess.run(
            command,
            cwd=ROOT,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **env},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        said += done.stdout + done.stderr
    return said


def leaks(spark: Spark, secret: str) -> str:
    """Where a secret can be read by others on the host: arguments, journal, open files."""
    return spark.sh(
        f"journalctl -q -o cat --no-pager | grep -F '{secret}' | head -3; "
        f"ps axww -o args | grep -F '{secret}' | grep -v grep; "
        f"systemctl show 'vllm@*' | grep -F '{secret}'; "
        "find / -xdev -type f -size -1M -perm -004 -not -path '/proc/*' -not -path '/sys/*' "
        "-not -path '/opt/sparkwright/tools/*' -not -path '/usr/*' "
        f"-exec grep -lF '{secret}' {{}} + 2>/dev/null; true"
    )


def test_key_from_the_controller(spark: Spark, tmp_path: Path) -> None:
    profile = {**STANDIN, "api_key": "env:SPARK_API_KEY"}
    file = inventory(tmp_path, [spark], {"standin": profile})
    run = pyinfra(str(file))
    assert run.code != 0 and "SPARK_API_KEY is not set where you run this" in run.output
    spark.wipe()
    said = everything_said(file, {"SPARK_API_KEY": KEY})
    assert KEY not in said
    assert leaks(spark, KEY) == ""
    assert "Unauthorized" in str(spark.ask("/v1/models"))
    assert spark.complete("tiny", key=KEY) == 8
    assert spark.sh("stat -c %a /etc/sparkwright/standin/api-key.env") == "600"
    # Another key: staged, one restart, the old one no longer opens.
    run = pyinfra(str(file), env={"SPARK_API_KEY": f"{KEY}-2"})
    assert run.code == 0 and f"{KEY}-2" not in run.output
    assert "Unauthorized" in str(spark.ask("/v1/models", key=KEY))
    assert spark.complete("tiny", key=f"{KEY}-2") == 8
    # No key any more: the file goes; for a rollback the one before is kept, for root alone.
    run = pyinfra(str(inventory(tmp_path, [spark])))
    assert run.code == 0 and spark.complete("tiny") == 8
    kept = spark.sh("find /etc /var/lib -name api-key.env -printf '%p %m %u'")
    assert kept == "/var/lib/sparkwright/previous/standin/api-key.env 600 root"


def test_key_made_on_the_host(spark: Spark, tmp_path: Path) -> None:
    profile = {**STANDIN, "api_key": "generate"}
    file = inventory(tmp_path, [spark], {"standin": profile})
    first = pyinfra(str(file))
    assert first.code == 0, first.output
    key = spark.sh("cut -d= -f2 /etc/sparkwright/standin/api-key.env")
    assert len(key) >= 32 and spark.complete("tiny", key=key) == 8
    said = everything_said(file, {})
    assert key not in said + first.output
    assert leaks(spark, key) == ""
    assert spark.sh("cut -d= -f2 /etc/sparkwright/standin/api-key.env") == key, "made once"


def start_hub(spark: Spark) -> None:
    """Serve a copy of the tiny model, with a 30 MB file beside it, from inside the host."""
    source = (ROOT / "tests/lab/hub.py").read_text()
    subprocess.run(
        ["docker", "exec", "-i", spark.container, "tee", "/root/hub.py"],
        text=True,
        input=source,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    spark.sh(
        f"printf %s {TOKEN} > /root/token; chmod 600 /root/token; echo 0 > /root/cut; "
        "mkdir -p /root/repo && cp /srv/models/tiny-qwen3/* /root/repo/ && "
        "head -c 30000000 /dev/urandom > /root/repo/model.safetensors; "
        "systemctl stop hub 2>/dev/null; systemd-run -q --unit=hub "
        f"python3 /root/hub.py 9999 /root/repo {MODEL} {COMMIT} /root/token /root/cut"
    )
    spark.wait_until("curl -s http://127.0.0.1:9999/", timeout=30)


def test_weights_from_a_hub(spark: Spark, tmp_path: Path) -> None:
    profile = {**STANDIN, "model": MODEL, "revision": COMMIT, "expects": {"weights_gib": 0.01}}
    profile |= {"runtime_gib": 0.1}  # a stand-in, not an engine
    file = inventory(tmp_path, [spark], {"standin": profile})
    target = f"/var/lib/sparkwright/models/acme--tiny-model/{COMMIT}"
    hub = {"HF_ENDPOINT": "http://127.0.0.1:9999"}
    start_hub(spark)
    # Without a token: refused, with what to do.
    run = pyinfra(str(file), env=hub)
    assert run.code != 0 and f"{MODEL} needs a token" in run.output, run.output
    assert "no HF_TOKEN is set" in run.output and "Traceback" not in run.output
    # A line that breaks in the middle of the large file, with a token that stays secret.
    spark.sh("echo 25000000 > /root/cut")
    said = everything_said(file, {**hub, "HF_TOKEN": TOKEN})
    assert TOKEN not in said
    assert leaks(spark, TOKEN) == ""
    # `hf` writes pieces of 10 MiB, so it goes on at the end of the last whole one.
    assert "model.safetensors bytes=" in spark.sh("journalctl -q -o cat -u hub"), "resumed"
    same = f"cd {target} && for f in /root/repo/*; do cmp $f $(basename $f) || exit 1; done"
    spark.sh(same)
    assert spark.complete("tiny") == 8
    run = pyinfra(str(file), env=hub)
    assert run.code == 0 and not run.names("success"), "nothing is fetched twice"
    # A file that is not what the hub's hashes say never gets in: it is fetched again.
    spark.sh(
        f"systemctl stop vllm@standin; mv {target} {target}.partial; "
        f"printf x >> {target}.partial/model.safetensors"
    )
    run = pyinfra(str(file), env={**hub, "HF_TOKEN": TOKEN})
    assert run.code == 0, run.output
    spark.sh(same)
    # A commit that the hub does not have.
    other = {**profile, "revision": "f" * 40}
    run = pyinfra(
        str(inventory(tmp_path, [spark], {"standin": other})), env={**hub, "HF_TOKEN": TOKEN}
    )
    assert run.code != 0 and f"the hub shows no {MODEL} at revision" in run.output, run.output
    assert spark.complete("tiny") == 8, "what is in service stays in service"
    spark.sh("systemctl stop hub; rm -rf /root/repo /root/token")
