"""What of the host's file system a sandbox sees: programs and their libraries, a Python with its standard library.

Not what Python packages are installed: code in a sandbox must not find the environment that scores it, or its solver.
Of /usr and /usr/local the folders with standard names are shown. A Python prefix elsewhere (conda, pyenv) is shown as
far as its interpreter needs it. `site-packages` and `dist-packages` are empty everywhere.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
STANDARD = frozenset(
    ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "libexec", "share", "include", "games", "etc", "local", "man")
)
_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_OF_A_PYTHON = ("lib", "ssl", "share/zoneinfo", "share/terminfo")
_PACKAGES = ("site-packages", "dist-packages")
_COVERED = ("home", "tmp", "var", "run", "etc", "dev", "proc", "sys")  # a sandbox has its own
ELSEWHERE = "/opt/whet-python"  # where a prefix in one of these is shown, which a Python bears
Shown = tuple[str, str]  # on the host, inside


@dataclass(frozen=True, slots=True)
class Layout:
    """What is shown, read-only, and what is empty although a folder above it is shown."""

    links: tuple[tuple[str, str], ...]  # (target, path) such as ("usr/bin", "/bin")
    directories: tuple[str, ...]  # bound where they are, such as /usr
    python: str  # the interpreter that runs the guest, as seen from inside
    hidden: tuple[str, ...] = ()  # folders of `directories`
    interpreter: tuple[Shown, ...] = ()  # of a prefix elsewhere, or in a hidden folder; of an image, everything
    packages: tuple[str, ...] = ()  # folders of either, inside, that hold Python packages: hidden, too
    pip: tuple[Shown, ...] = ()  # the installer in these: for a sandbox that has a network to install from
    image: str = ""  # the folder of the host whose files are shown in place of the host's own

    def arguments(self, with_pip: bool) -> list[str]:
        """In bubblewrap's words, outer folders first."""
        words = show((path, path) for path in self.directories) + hide(self.hidden)
        words += show(self.interpreter) + hide(self.packages)
        words += show(self.pip) if with_pip else []
        for target, path in self.links:
            words += ["--symlink", target, path]
        return words

    def seal(self) -> list[str]:
        """Once everything else is shown: nothing can be written to what is hidden."""
        return [word for path in (*self.hidden, *self.packages) for word in ("--remount-ro", path)]


def layout_of_image(root: Path) -> Layout:
    """What is shown of an image's files in a folder, in place of the host's; `python` is empty where it has none.

    Other folders than those of the system are shown entry by entry, so that more can be shown beside these.
    """
    root, links, shown = root.resolve(), list[Shown](), list[Shown]()
    for top in sorted(root.iterdir()):
        if top.name in (*_COVERED, "root"):
            continue
        whole = top.is_symlink() or not top.is_dir() or top.name in (*_SYSTEM, "usr")
        for path in [top] if whole else sorted(top.iterdir()):
            inside = f"/{path.relative_to(root)}"
            if path.is_symlink():
                links.append((os.readlink(path), inside))
            else:
                shown.append((str(path), inside))
    paths = ("/usr/local/bin/python3", "/usr/bin/python3", "/bin/python3")
    python = next((path for path in paths if os.path.lexists(f"{root}{path}")), "")
    return Layout(tuple(links), (), python, interpreter=tuple(shown), image=str(root))


def show(paths: Iterable[Shown]) -> list[str]:
    return [word for shown in paths for word in ("--ro-bind", *shown)]


def hide(paths: Iterable[str]) -> list[str]:
    return [word for path in paths for word in ("--perms", "0555", "--tmpfs", path)]


def layouts(root: Path = Path("/")) -> list[Layout]:
    """Candidates, the preferred first: with this process's Python, then with the system's. `root` is for tests."""
    links, directories = _system(root)
    roots = [Path(directory) for directory in directories]
    own = Path(sys.base_prefix).resolve()
    kinds = []
    needed, python = _prefix(own)
    if python is not None and own in (root / "usr", root / "usr/local"):
        kinds.append(_layout(links, roots, str(python), {}, root))
    elif python is not None:
        inside = Path(ELSEWHERE) if _below(own, [root / name for name in _COVERED]) else own
        mapped = {path: inside / path.relative_to(own) for path in needed}
        program = mapped[python]
        names = [name for name in (_VERSION, "python3", "python") if name != program.name]
        more = [(program.name, str(program.parent / name)) for name in names]
        kinds.append(_layout([*links, *more], roots, str(program), mapped, root))
    for path in (root / "usr/local/bin/python3", root / "usr/bin/python3"):
        if path.exists():
            kinds.append(_layout(links, roots, str(path), {}, root))
    return kinds


def _layout(
    links: Sequence[tuple[str, str]], roots: Sequence[Path], python: str, mapped: Mapping[Path, Path], root: Path
) -> Layout:
    everywhere = _package_folders([*roots, *mapped])
    hidden = [path for path in _hidden(root) if path not in everywhere]
    packages = {path: path for path in everywhere if not _below(path, hidden)}
    for outer, inside in mapped.items():
        packages |= {path: inside / path.relative_to(outer) for path in everywhere if path.is_relative_to(outer)}
    pip = [(path / "pip", inside / "pip") for path, inside in packages.items() if (path / "pip").is_dir()]
    return Layout(
        tuple(links),
        tuple(map(str, roots)),
        python,
        tuple(map(str, hidden)),
        tuple((str(path), str(inside)) for path, inside in mapped.items()),
        tuple(map(str, packages.values())),
        tuple((str(path), str(inside)) for path, inside in pip),
    )


def _system(root: Path) -> tuple[list[tuple[str, str]], list[str]]:
    """/bin and its kin are links into /usr on most systems and directories on some."""
    links, directories = [], [str(root / "usr")]
    for name in _SYSTEM:
        path = root / name
        if path.is_symlink():
            links.append((os.readlink(path), str(path)))
        elif path.is_dir():
            directories.append(str(path))
    return links, directories


def links_to_python(shown: Iterable[Path]) -> list[tuple[str, Path]]:
    """The links by which this Python is started that lie in none of the folders `shown`: (where to, where it is).

    A virtual environment that was made with `~/.local/bin/python3.12` begins with that link, wherever the program is.
    """
    links: list[tuple[str, Path]] = []
    path, folders = Path(sys.executable).absolute(), list(shown)
    while path.is_symlink():
        if not any(path.is_relative_to(folder) for folder in folders):
            links.append((os.readlink(path), path))
        path = Path(os.path.normpath(path.parent / os.readlink(path)))
    return links


def _hidden(root: Path) -> list[Path]:
    """Folders of /usr and /usr/local without a standard name, and those that this process imports from or lives in."""
    hidden = []
    for above in (root / "usr", root / "usr/local"):
        for path in sorted(above.iterdir()) if above.is_dir() else ():
            if path.is_dir() and not path.is_symlink() and path.name not in STANDARD and "-linux-" not in path.name:
                hidden.append(path)
    standard = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")]
    own = [sys.prefix] if sys.prefix != sys.base_prefix else []
    for entry in sorted({Path(text).resolve() for text in [*own, *sys.path] if text}):
        depth = len(entry.relative_to(root / "usr").parts) if entry.is_relative_to(root / "usr") else 0
        top = 2 if entry.is_relative_to(root / "usr/local") else 1
        if depth > top and entry.is_dir() and not any(entry.is_relative_to(path) for path in (*hidden, *standard)):
            hidden.append(entry)
    return hidden


def _prefix(prefix: Path) -> tuple[list[Path], Path | None]:
    """What an interpreter in this prefix needs, and the interpreter itself, which is the first of it."""
    python = (prefix / "bin" / _VERSION).resolve()
    if not python.is_file() or not python.is_relative_to(prefix):
        return [], None
    folders = [(prefix / name).resolve() for name in dict.fromkeys((*_OF_A_PYTHON, sys.platlibdir))]
    return [python, *(folder for folder in folders if folder.is_dir() and folder.is_relative_to(prefix))], python


def _package_folders(shown: Iterable[Path]) -> list[Path]:
    """Every `site-packages` and `dist-packages` of a Python in these folders, and of Pythons in a /usr/local below."""
    folders: set[Path] = set()
    for folder in shown:
        libraries = [folder] if folder.name.startswith("lib") else []
        libraries += [path for above in (folder, folder / "local") for path in above.glob("lib*")]
        for library in libraries:
            for pattern in ("python*", "pypy*"):
                for name in _PACKAGES:
                    folders |= {path.resolve() for path in library.glob(f"{pattern}/{name}") if path.is_dir()}
    return sorted(folders)


def _below(path: Path, folders: Iterable[Path]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)
