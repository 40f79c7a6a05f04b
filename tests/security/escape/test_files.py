"""Programs that reach for the files of the host."""

from __future__ import annotations

import subprocess

import pytest

from .host import Host, contained

pytestmark = pytest.mark.usefixtures("bubblewrap")

SHELL = {
    "reads a file of the host": "cat SECRET && echo ESCAPED",
    "reads the password hashes": "cat /etc/shadow && echo ESCAPED",
    "reads the machine id": "cat /etc/machine-id && echo ESCAPED",
    "reads the host's user list": "grep '^root:' /etc/passwd && echo ESCAPED",
    "lists root's home": "ls /root && echo ESCAPED",
    "lists the host's homes": "ls /home | grep -v -x -e user -e tmp -e shm && echo ESCAPED",
    "lists the host's temporary folder": "ls FOLDER && echo ESCAPED",
    "finds the docker socket": "ls /var/run/docker.sock /run/docker.sock && echo ESCAPED",
    "finds run-time sockets of the host": "ls /run | grep -v -x whet && echo ESCAPED",
    "writes into the system": "touch /usr/bin/intruder && echo ESCAPED",
    "writes into the root": "touch /intruder && echo ESCAPED",
    "writes into /etc": "touch /etc/intruder || echo 'x:x:0:0::/:' >> /etc/passwd && echo ESCAPED",
    "replaces a system program": "mv /usr/bin/env /usr/bin/env2 && echo ESCAPED",
    "writes a device folder": "touch /dev/intruder && echo ESCAPED",
    "follows a symbolic link to the host": "ln -s SECRET link; cat link && echo ESCAPED",
    "makes a hard link to a system file": "ln /usr/bin/env here && echo ESCAPED",
    "climbs out with dots": "cat ../../../../../../../..SECRET && echo ESCAPED",
    "reads the raw disk": "head -c 1 /dev/sda || head -c 1 /dev/vda && echo ESCAPED",
    "makes a device file": "mknod disk b 8 0 && echo ESCAPED",
    "reads the host through another process's root": "cat /proc/1/rootSECRET && echo ESCAPED",
    "reads the host through its working directory": "cat /proc/1/cwd/../..SECRET && echo ESCAPED",
    "makes a hard link to a file of the host": "ln SECRET here && echo ESCAPED",
    "opens a file of the host through a file descriptor": "cat /proc/self/fd/../..SECRET && echo ESCAPED",
    "opens a file of the host through a map": "ls -l /proc/*/map_files/ | grep -v /usr/ | grep FOLDER && echo ESCAPED",
    "reads the disk by its label": "ls /dev/disk /dev/mapper && echo ESCAPED",
    "writes into the folder of the guest": "touch /run/whet/x || echo x > /run/whet/guest.py && echo ESCAPED",
    "removes the guest": "rm -f /run/whet/guest.py && ! test -e /run/whet/guest.py && echo ESCAPED",
    "renames a system folder": "mv /usr /usr2 && echo ESCAPED",
    "makes the root writable by its mode": "chmod 777 / /etc /usr && echo ESCAPED",
    "reads shared memory of the host": "touch /dev/shm/intruder; ls /dev/shm | grep -v -x intruder && echo ESCAPED",
    "writes into the message queues of the host": "touch /dev/mqueue/intruder && echo ESCAPED",
}


@pytest.mark.parametrize("name", SHELL)
def test_a_shell_program_is_contained(host: Host, name: str) -> None:
    contained(host, ["sh", "-c", host.fill(SHELL[name])])


def test_the_same_programs_would_notice_an_escape(host: Host) -> None:
    """On the host, without a sandbox, they report one: the tests above can fail."""
    for name in ("reads a file of the host", "lists the host's temporary folder"):
        done = subprocess.run(["sh", "-c", host.fill(SHELL[name])], capture_output=True, text=True, check=False)
        assert "ESCAPED" in done.stdout, name
