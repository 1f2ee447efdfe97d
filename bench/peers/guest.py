"""A QEMU guest with a stock Debian kernel, in software emulation, that runs one Python program
on two CPUs and has no network. Its programs, their libraries, the kernel's modules and Python
itself are its initial RAM disk. The program reports over a serial port.
"""
import os
import pathlib
import shutil
import stat
import subprocess
import tempfile
import time

# Like crates/lab/tests/guest/init: the second serial port has the output, the third the errors.
INIT = """#!/bin/busybox sh
export PATH=/usr/sbin:/usr/bin:/usr/local/bin HOME=/root PYTHONDONTWRITEBYTECODE=1
alias b=/bin/busybox
b mount -t proc proc /proc
b mount -t sysfs sysfs /sys
b mount -t devtmpfs devtmpfs /dev
b mount -t bpf bpf /sys/fs/bpf
b mount -t tracefs tracefs /sys/kernel/tracing
b mount -t tmpfs -o size=60% tmpfs /tmp
for port in 1 2; do
	b stty -F /dev/ttyS$port raw -echo
done
modprobe tun
{python} /inside.py {arguments} </dev/null >/dev/ttyS1 2>/dev/ttyS2
b poweroff -f
"""
# Parts of Python for tests, tools and documentation, which the guest does not need.
NOT_OF_PYTHON = {"test", "idlelib", "lib2to3", "tkinter", "ensurepip", "turtledemo", "pydoc_data",
                 "site-packages", "dist-packages", "__pycache__"}
MODULES = ("kernel/net/", "kernel/lib/", "kernel/drivers/net/vxlan/", "kernel/drivers/net/veth",
           "kernel/drivers/net/tun", "kernel/drivers/net/dummy", "kernel/crypto/crc32c")
# Memory, MB: it also holds the output of running tools.
MEMORY = 4096


class Archive:
    """A `cpio` archive in the "newc" format, as the kernel unpacks it at boot."""

    def __init__(self, path):
        self.file, self.paths = open(path, "wb"), set()
        for name in ("dev", "proc", "sys", "run", "tmp", "root", "etc", "var"):
            self.directories(name)
        for name in ("bin", "sbin", "lib", "lib64"):
            self.directories(f"usr/{name}")
            self.entry(name, stat.S_IFLNK | 0o777, f"usr/{name}".encode())
        self.entry("var/run", stat.S_IFLNK | 0o777, b"/run")

    def entry(self, name, mode, contents=b""):
        self.paths.add(name)
        encoded = name.encode() + b"\0"
        fields = [len(self.paths), mode, 0, 0, 1, 0, len(contents), 0, 0, 0, 0, len(encoded), 0]
        head = b"070701" + b"".join(b"%08x" % field for field in fields) + encoded
        self.file.write(head + b"\0" * (-len(head) % 4) + contents + b"\0" * (-len(contents) % 4))

    def directories(self, name):
        parts = pathlib.PurePath(name).parts
        for depth in range(1, len(parts) + 1):
            above = "/".join(parts[:depth])
            if above not in self.paths:
                self.entry(above, stat.S_IFDIR | 0o755)

    def add(self, path, contents):
        """A file, executable."""
        name = str(path).lstrip("/")
        # These are links to the directories below usr.
        if name.split("/")[0] in ("bin", "sbin", "lib", "lib64"):
            name = f"usr/{name}"
        if name not in self.paths:
            self.directories(os.path.dirname(name))
            self.entry(name, stat.S_IFREG | 0o755, contents)

    def copy(self, path, to=None):
        self.add(to or path, pathlib.Path(path).read_bytes())

    def program(self, path, to=None):
        """A program or library, and what it is linked with (`ldd`)."""
        self.copy(path, to)
        # ldd fails for a static program, which needs none.
        listing = subprocess.run(["ldd", path], capture_output=True, text=True).stdout
        for line in listing.splitlines():
            if "not found" in line:
                raise SystemExit(f"{path}: {line.strip()}")
            for word in line.split():
                if word.startswith("/"):
                    self.copy(word)
                    break

    def python(self):
        """Debian's Python with its standard library; where it is."""
        python = os.path.realpath("/usr/bin/python3")
        self.program(python)
        words = "import sysconfig; print(sysconfig.get_path('stdlib'))"
        library = subprocess.run([python, "-c", words], capture_output=True, text=True, check=True)
        for folder, below, files in os.walk(library.stdout.strip()):
            below[:] = [name for name in below if name not in NOT_OF_PYTHON]
            for name in files:
                path = os.path.join(folder, name)
                if name.endswith(".so"):
                    self.program(path)
                elif name.endswith(".py"):
                    self.copy(path)
        return python

    def modules(self, directory):
        """The requested modules of lib/modules/VERSION, their dependencies, and depmod's indices."""
        inside = f"lib/modules/{directory.name}"
        for path in directory.glob("modules.*"):
            self.copy(path, f"{inside}/{path.name}")
        for line in (directory / "modules.dep").read_text().splitlines():
            module, needed = line.split(":")
            if module.startswith(MODULES):
                for name in [module, *needed.split()]:
                    self.copy(directory / name, f"{inside}/{name}")

    def finish(self):
        self.entry("TRAILER!!!", 0)
        self.file.close()


def find(name, package):
    """A program of this machine."""
    path = shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin")
    return path or exit_with(f"{name} is not installed: apt install {package}")


def exit_with(problem):
    raise SystemExit(f"bench/watch-peers: {problem}")


def kernel(root):
    """Image, modules, configuration of the kernel that fetch-kernel has put there."""
    images = sorted((root / "boot").glob("vmlinuz-*"))
    if not images:
        exit_with(f"no kernel in {root}: crates/lab/tests/guest/fetch-kernel 6.12")
    version = images[-1].name.removeprefix("vmlinuz-")
    return images[-1], root / "lib/modules" / version, root / f"boot/config-{version}"


def run(root, programs, inside, arguments, limit, on_line):
    """Boots it, and runs `inside` in it with `arguments`: a dictionary `programs` says where in
    the guest which of this machine is. `on_line` is called with each line that it prints. Returns
    what it said to standard error, and the console."""
    image, modules, configuration = kernel(root)
    with tempfile.TemporaryDirectory() as work:
        at = lambda name: os.path.join(work, name)
        archive = Archive(at("initrd"))
        python = archive.python()
        words = " ".join(f"'{word}'" for word in arguments)
        script = INIT.replace("{python}", python).replace("{arguments}", words)
        archive.add("init", script.encode())
        archive.copy(inside, "inside.py")
        archive.program(find("busybox", "busybox-static"), "bin/busybox")
        archive.entry("usr/bin/sh", stat.S_IFLNK | 0o777, b"busybox")
        archive.program(find("modprobe", "kmod"), "sbin/modprobe")
        for there, path in programs.items():
            archive.program(path, there)
        archive.copy(configuration, f"boot/{configuration.name}")
        archive.modules(modules)
        archive.finish()
        command = [find("qemu-system-x86_64", "qemu-system-x86"), "-accel", "tcg,thread=multi",
                   "-cpu", "max", "-smp", "2", "-m", str(MEMORY), "-nodefaults",
                   "-no-user-config", "-display", "none", "-no-reboot", "-nic", "none",
                   "-kernel", str(image), "-initrd", at("initrd"),
                   "-append", "console=ttyS0 panic=-1 quiet loglevel=4"]
        for port in ("console", "stdout", "stderr"):
            command += ["-serial", f"file:{at(port)}"]
        with open(at("qemu"), "w") as log:
            qemu = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            follow(qemu, at("stdout"), limit, on_line)
        finally:
            qemu.kill()
            qemu.wait()
        read = lambda name: pathlib.Path(at(name)).read_text(errors="replace")
        return read("stderr"), read("qemu") + read("console")


def follow(qemu, path, limit, on_line):
    """Yields whole lines until the guest ends, or until the limit (s)."""
    end, offset = time.monotonic() + limit, 0
    while True:
        is_over = qemu.poll() is not None or time.monotonic() > end
        if os.path.exists(path):
            with open(path, "rb") as lines:
                lines.seek(offset)
                whole, newline, _ = lines.read().rpartition(b"\n")
            offset += len(whole) + len(newline)
            for line in whole.decode(errors="replace").splitlines():
                on_line(line)
        if is_over:
            return
        time.sleep(0.2)
