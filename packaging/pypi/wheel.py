"""Writes a wheel that holds a built program, with the metadata of pyproject.toml beside this script.

    wheel.py VERSION TARGET PROGRAM OUT

maturin with `bindings = "bin"` always compiles, so it cannot pack the program that was guided by a profile. Equal programs
give equal bytes, with the time SOURCE_DATE_EPOCH.
"""

import base64
import hashlib
import os
import sys
import time
import tomllib
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
# The program is static: it runs beside glibc and musl.
PLATFORMS = {
    "x86_64-unknown-linux-musl": "manylinux2014_x86_64.musllinux_1_1_x86_64",
    "aarch64-unknown-linux-musl": "manylinux2014_aarch64.musllinux_1_1_aarch64",
    "x86_64-apple-darwin": "macosx_11_0_x86_64",
    "aarch64-apple-darwin": "macosx_11_0_arm64",
    "x86_64-pc-windows-gnu": "win_amd64",
    "x86_64-pc-windows-msvc": "win_amd64",
}
EARLIEST = (1980, 1, 1, 0, 0, 0)


def metadata(project: dict, version: str) -> str:
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {project['name']}",
        f"Version: {version}",
        f"Summary: {project['description']}",
        f"Keywords: {','.join(project['keywords'])}",
        f"License-Expression: {project['license']}",
        "License-File: LICENSE",
        f"Requires-Python: {project['requires-python']}",
        "Description-Content-Type: text/markdown",
    ]
    return "\n".join(lines) + "\n\n" + (HERE / project["readme"]).read_text()


def wheel(version: str, target: str, program: Path, out: Path) -> Path:
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    if target not in PLATFORMS:
        sys.exit(f"wheel: {target} has no tag: known are {', '.join(PLATFORMS)}")
    platform = PLATFORMS[target]
    tags = "".join(f"Tag: py3-none-{one}\n" for one in platform.split("."))
    info = f"taskgate-{version}.dist-info"
    script = "taskgate.exe" if "windows" in target else "taskgate"
    files = {
        f"taskgate-{version}.data/scripts/{script}": (program.read_bytes(), 0o755),
        f"{info}/METADATA": (metadata(project, version).encode(), 0o644),
        f"{info}/WHEEL": (
            f"Wheel-Version: 1.0\nGenerator: taskgate wheel.py\nRoot-Is-Purelib: false\n{tags}".encode(),
            0o644,
        ),
        f"{info}/licenses/LICENSE": ((HERE / "../../LICENSE").read_bytes(), 0o644),
    }
    record = ""
    for name, (content, _) in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(content)}\n"
    files[f"{info}/RECORD"] = (f"{record}{info}/RECORD,,\n".encode(), 0o644)

    moment = max(time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", "0")))[:6], EARLIEST)
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"taskgate-{version}-py3-none-{platform}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, (content, mode) in files.items():
            entry = zipfile.ZipInfo(name, moment)
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return path


version, target, program, out = sys.argv[1:]
print(f"wheel: {wheel(version, target, Path(program), Path(out))}")
