"""Build sdist and wheel, install the wheel in a new environment, and run it there with and without a compiler.

The wheel is built from the sdist, so the sdist is whole too. Nothing but fedlga is installed: the other packages are
taken from this environment, so that nothing is fetched twice. What is built stays in dist/.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
RUN = ["run", "--preset", "digits", "--rounds", "2", "--out", "run"]
SHOW = "import fedlga, json; print(fedlga.__file__); print(json.load(open('run/summary.json'))['compiled'])"


def main() -> None:
    """Build, install, run; an error ends it."""
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    call(sys.executable, "-m", "build", "--outdir", str(dist), str(ROOT))
    (wheel,) = dist.glob("*.whl")
    missing = find_missing(wheel)
    if missing:
        sys.exit(f"{wheel.name} lacks {', '.join(missing)}")
    with tempfile.TemporaryDirectory() as folder:
        python = make_environment(Path(folder) / "environment", wheel)
        for compiler in (True, False):
            try_package(python, Path(folder) / f"compiler-{compiler}", compiler=compiler)
    print(f"built, installed and run, with and without a compiler: {', '.join(file.name for file in dist.iterdir())}")


def find_missing(wheel: Path) -> list[str]:
    """Return the files of the package that are not in the wheel."""
    packed, source = set(zipfile.ZipFile(wheel).namelist()), ROOT / "src"
    files = [f for f in sorted((source / "fedlga").rglob("*")) if f.is_file() and "__pycache__" not in f.parts]
    return [name for file in files if (name := file.relative_to(source).as_posix()) not in packed]


def make_environment(folder: Path, wheel: Path) -> Path:
    """Return the Python of a new environment with the wheel, in which the packages of this one are found."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    call(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", str(wheel))
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return python


def try_package(python: Path, folder: Path, *, compiler: bool) -> None:
    """Run fedlga in an empty folder, as a command and as a module."""
    folder.mkdir()
    own = {"XDG_CACHE_HOME": str(folder / "cache"), "PYTHONPATH": ""}
    environment = {**os.environ, **own, **({} if compiler else {"CC": str(folder / "none")})}
    command = str(python.with_name("fedlga"))
    call(command, "--version", cwd=folder, env=environment)
    call(str(python), "-m", "fedlga", *RUN, cwd=folder, env=environment)
    call(command, "report", "run", cwd=folder, env=environment)
    shown = subprocess.run(  # noqa: S603
        [str(python), "-c", SHOW], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    file, compiled = shown.stdout.split()
    if str(python.parents[1]) not in file:
        sys.exit(f"{file} is not the installed package")
    if compiled != str(compiler):
        sys.exit(f"compiled: {compiled}, and a compiler was {'there' if compiler else 'not there'}")


def call(*words: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    """Run a command; an error ends this one."""
    subprocess.run(words, cwd=cwd, env=env, check=True)  # noqa: S603


if __name__ == "__main__":
    main()
