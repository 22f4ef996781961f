"""The unit that finishes at boot what a reboot cut off: its tie to the engines and the program."""

from __future__ import annotations

from pathlib import Path

from sparkwright import render

PATH = "etc/systemd/system/sparkwright-recover.service"
UNIT = render.template(PATH)


def test_it_comes_with_its_program() -> None:
    files = {file.path: file for file in render.base_files()}
    assert files[f"/{PATH}"].content == UNIT
    (command,) = [line for line in UNIT.splitlines() if line.startswith("ExecStart=")]
    python, program, verb = command.removeprefix("ExecStart=").split()
    assert (
        python == "/usr/bin/python3"
        and program in files
        and f'"{verb}":' in (files[program].content)
    )


def test_engines_wait_for_it_at_boot() -> None:
    drop_in = render.ROOT / "templates/etc/systemd/system/vllm@.service.d/instance.conf.j2"
    assert f"After={Path(PATH).name}\n" in drop_in.read_text()
    assert "Type=oneshot" in UNIT and "WantedBy=multi-user.target" in UNIT
    # Not what a boot waits for: it does nothing unless something was cut off.
    assert "ConditionPathExists=/var/lib/sparkwright/transaction.json" in UNIT
