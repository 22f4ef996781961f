"""Stand-in: makes this container look like a DGX Spark, healthy or with the faults that are on.

    host.py fault NAME [VALUE]    switch a fault on
    host.py clear [NAME...]       switch faults off (none named: all)
    host.py list                  the faults that are on, one a line
    host.py boot                  at boot: drop what a reboot cures, put the rest in place

A fault is a file in /etc/spark-lab/faults, so it outlives a reboot. After every change the whole
state is put in place again, each part by one function that can run any number of times.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from faults import FABRIC_DEVICES, FAULTS, gpu_state, meminfo, proc_version

STATE = Path("/etc/spark-lab")
ON = STATE / "faults"
HERE = Path(__file__).parent
HEAD = "# Stand-in of a simulated Spark.\n"
DGX_RELEASE = """\
DGX_NAME="DGX Spark"
DGX_PRETTY_NAME="NVIDIA DGX Spark"
DGX_SWBUILD_DATE="2025-09-10-13-50-03"
DGX_SWBUILD_VERSION="7.2.3"
DGX_COMMIT_ID="833b4a7"
DGX_PLATFORM="DGX Server for KVM"
DGX_SERIAL_NUMBER="0000000000000"
DGX_OTA_VERSION="7.3.1"
DGX_OTA_DATE="Wed Dec 10 09:02:11 AM UTC 2025"
DGX_OTA_VERSION="7.5.0"
DGX_OTA_DATE="Wed Jul 15 09:06:56 AM UTC 2026"
"""
FASTOS_RELEASE = 'NAME="DGX SPARK FASTOS"\nVERSION="1.91.51"\nBUILD_TYPE="customer"\n'
KERNEL, NEXT_KERNEL = "6.17.0-1008-nvidia", "6.17.0-1032-nvidia"
HOOKS = {"input": "iifname", "output": "oifname"}
FULL = (Path("/opt/sparkwright"), Path("/var/lib/sparkwright"))


def run(*command: str) -> None:
    subprocess.run(command, check=True)


def bind(source: Path, target: Path, wanted: bool) -> None:
    """Mount ``source`` over ``target``, or make sure that nothing is mounted there."""
    if os.path.ismount(target) and not wanted:
        run("umount", "--lazy", str(target))
    elif wanted and not os.path.ismount(target):
        run("mount", "--bind", str(source), str(target))


def release_files(on: dict[str, str]) -> None:
    for path, text in (("dgx-release", DGX_RELEASE), ("fastos-release", FASTOS_RELEASE)):
        file = Path("/etc") / path
        if "not-a-spark" in on:
            file.unlink(missing_ok=True)
        else:
            file.write_text(text)


def driver(on: dict[str, str]) -> None:
    state = gpu_state(on)
    draft = STATE / "gpu.new"
    draft.write_text(HEAD + "".join(f"{key}={value}\n" for key, value in state.items()))
    draft.replace(STATE / "gpu")
    folder = STATE / "proc-driver"
    shutil.rmtree(folder / "nvidia", ignore_errors=True)
    folder.mkdir(exist_ok=True)
    if state["status"] != "not-loaded":
        (folder / "nvidia").mkdir()
        (folder / "nvidia/version").write_text(proc_version(state))
    bind(folder, Path("/proc/driver"), True)


def toolkits(on: dict[str, str]) -> None:
    versions = ["13.0"]
    if "cuda-12-beside" in on:
        versions = ["13.0", "12.8"]
    if "cuda-12" in on:
        versions = ["12.8"]
    if "no-nvcc" in on:
        versions = []
    default = Path("/usr/local/cuda")
    default.unlink(missing_ok=True)
    for version, nvcc in (("13.0", "13.0.88"), ("12.8", "12.8.93")):
        folder = Path(f"/usr/local/cuda-{version}")
        shutil.rmtree(folder, ignore_errors=True)
        if version not in versions:
            continue
        (folder / "bin").mkdir(parents=True)
        for tool in ("nvcc", "ptxas"):
            shutil.copy(HERE / "nvcc", folder / "bin" / tool)
        (folder / "version.json").write_text(
            f'{{"cuda": {{"name": "CUDA SDK (stand-in)", "version": "{version}"}},\n'
            f' "cuda_nvcc": {{"name": "CUDA NVCC", "version": "{nvcc}"}}}}\n'
        )
    if versions:
        default.symlink_to(f"/usr/local/cuda-{versions[0]}")


def kernels(on: dict[str, str]) -> None:
    bare = "next-kernel-bare" in on
    for kernel, present, module in ((KERNEL, True, True), (NEXT_KERNEL, bare, False)):
        image, modules = Path(f"/boot/vmlinuz-{kernel}"), Path(f"/lib/modules/{kernel}")
        image.unlink(missing_ok=True)
        shutil.rmtree(modules, ignore_errors=True)
        if not present:
            continue
        image.write_text(HEAD)
        (modules / "kernel/drivers").mkdir(parents=True)
        if module:
            (modules / "kernel/nvidia-580-open").mkdir()
            (modules / "kernel/nvidia-580-open/nvidia.ko.zst").write_text(HEAD)
    link = Path("/boot/vmlinuz")
    link.unlink(missing_ok=True)
    link.symlink_to(f"vmlinuz-{NEXT_KERNEL if bare else KERNEL}")


def memory(on: dict[str, str]) -> None:
    text, file, target = meminfo(on), STATE / "meminfo", Path("/proc/meminfo")
    bind(file, target, False)
    if text is not None:
        file.write_text(text)
        bind(file, target, True)


def virtual_memory_settings() -> None:
    """Let vm.* settings be written without touching the outer machine's, which they would be."""
    target, copy = Path("/proc/sys/vm"), Path("/run/spark-lab/vm")
    if os.path.ismount(target):
        return
    copy.mkdir(parents=True)
    for setting in target.iterdir():
        # drop_caches and compact_memory can only be written.
        readable = setting.stat().st_mode & 0o400
        (copy / setting.name).write_text(setting.read_text() if readable else "")
    bind(copy, target, True)
    run("/lib/systemd/systemd-sysctl", "--prefix=vm")


def disk(on: dict[str, str]) -> None:
    for folder in FULL:
        if "full-disk" in on and not os.path.ismount(folder):
            folder.mkdir(parents=True, exist_ok=True)
            run("mount", "-t", "tmpfs", "-o", "size=1m,mode=755", "full", str(folder))
            with (folder / "full").open("wb", buffering=0) as file:
                try:
                    while True:
                        file.write(bytes(4096))
                except OSError:
                    pass
        elif "full-disk" not in on and os.path.ismount(folder):
            run("umount", "--lazy", str(folder))
            if not any(folder.iterdir()):
                folder.rmdir()


def rails(on: dict[str, str]) -> None:
    """Break the second rail, or both, with the kernel's own means."""
    seconds = [both[1] for both in FABRIC_DEVICES]
    for name in seconds:
        if Path(f"/sys/class/net/{name}").exists():
            run("ip", "link", "set", name, "down" if "rail-down" in on else "up")
    drops = []
    if "rail-mtu" in on:
        drops = [f"{name} meta length > 1500 drop" for name in seconds]
    if "fabric-cut" in on:
        drops = [f"{name} drop" for both in FABRIC_DEVICES for name in both]
    table = "table inet spark_lab {\n chain %s {\n type filter hook %s priority -300\n%s\n }\n}"
    rules = [
        table % (hook, hook, "\n".join(f"{word} {drop}" for drop in drops))
        for hook, word in HOOKS.items()
        if drops
    ]
    text = "\n".join(["add table inet spark_lab", "delete table inet spark_lab", *rules])
    subprocess.run(["nft", "-f", "-"], input=text, text=True, check=True)


def foreign_netplan(on: dict[str, str]) -> None:
    """What a guide's script left: both rails in one subnet."""
    file = Path("/etc/netplan/40-cx7.yaml")
    if "one-subnet" not in on:
        if file.exists() and HEAD in file.read_text():
            file.unlink()
            run("netplan", "apply")
        return
    last = 10 + int(os.uname().nodename.rpartition("-")[2])
    lines = [HEAD, "network:\n  version: 2\n  ethernets:\n"]
    for number, name in enumerate(FABRIC_DEVICES[1]):
        lines.append(f"    {name}:\n      dhcp4: false\n      addresses:\n")
        lines.append(f"      - 192.168.100.{last + 100 * number}/24\n")
    file.write_text("".join(lines))
    file.chmod(0o600)
    run("netplan", "apply")


def sudo(on: dict[str, str]) -> None:
    file = Path("/etc/sudoers.d/nvidia")
    free = "" if "sudo-password" in on else "NOPASSWD: "
    file.write_text(f"nvidia ALL=(ALL:ALL) {free}ALL\n")
    file.chmod(0o440)


def stranger(on: dict[str, str]) -> None:
    wanted = f"spark-lab-stranger@{on['port-taken']}.service" if "port-taken" in on else None
    listed = subprocess.run(
        ["systemctl", "list-units", "--all", "--plain", "--no-legend", "spark-lab-stranger@*"],
        capture_output=True,
        text=True,
    ).stdout
    for unit in (line.split()[0] for line in listed.splitlines()):
        if unit != wanted:
            run("systemctl", "stop", unit)
    if wanted:
        run("systemctl", "start", "--no-block", wanted)


def expect_stranger(port: str) -> None:
    """Wait until the stranger answers; gives the fault up when something else holds the port."""
    unit = f"spark-lab-stranger@{port}.service"
    for _ in range(50):
        time.sleep(0.1)
        if subprocess.run(["systemctl", "--quiet", "is-failed", unit]).returncode == 0:
            break
        with suppress(OSError, HTTPException):
            connection = HTTPConnection("127.0.0.1", int(port), timeout=1)
            connection.request("GET", "/health")
            if connection.getresponse().getheader("Server", "").startswith("stranger"):
                return
    (ON / "port-taken").unlink()
    run("systemctl", "reset-failed", unit)
    sys.exit(f"port {port} could not be taken: something else holds it")


def apply() -> None:
    ON.mkdir(parents=True, exist_ok=True)
    on = {fault.name: fault.read_text().strip() for fault in ON.iterdir()}
    virtual_memory_settings()
    for part in (release_files, driver, toolkits, kernels, memory, disk, sudo, stranger, rails):
        part(on)


def main(verb: str, *names: str) -> None:
    ON.mkdir(parents=True, exist_ok=True)
    if verb == "list":
        for fault in sorted(ON.iterdir()):
            print(f"{fault.name} {fault.read_text()}".strip())
        return
    if verb == "fault":
        (ON / names[0]).write_text(" ".join(names[1:]) + "\n")
    if verb == "clear":
        for fault in names or os.listdir(ON):
            (ON / fault).unlink(missing_ok=True)
    if verb == "boot":
        for fault in ON.iterdir():
            if FAULTS[fault.name].until_reboot:
                fault.unlink()
    apply()
    if verb in ("fault", "clear") and (verb == "clear" or names[0] == "one-subnet"):
        foreign_netplan({fault.name: "" for fault in ON.iterdir()})
    if verb == "fault" and names[0] == "port-taken":
        expect_stranger(names[1])


main(*sys.argv[1:])
