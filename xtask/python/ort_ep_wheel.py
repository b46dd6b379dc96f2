"""Pack the plugin provider as a wheel: ort_ep_wheel.py LIBRARY PACKAGE README VERSION FOLDER

PACKAGE is the folder of the Python package. The tag of the wheel names the newest version of the system's C library that
the plugin has symbols of. Prints the path of the wheel.
"""
import base64
import hashlib
import os
import platform
import re
import sys
import zipfile

LIBRARY, PACKAGE, README, VERSION, FOLDER = sys.argv[1:6]
NAME = "onnxruntime_ep_precast"
# Equal sources give equal wheels.
DATE = (2020, 1, 1, 0, 0, 0)


def system_version(data):
    found = re.findall(rb"GLIBC_(\d+)\.(\d+)", data)
    return max((int(major), int(minor)) for major, minor in found)


def main():
    with open(LIBRARY, "rb") as file:
        library = file.read()
    major, minor = system_version(library)
    tag = f"py3-none-manylinux_{major}_{minor}_{platform.machine()}"
    with open(README, encoding="utf-8") as file:
        readme = file.read()
    info = f"{NAME}-{VERSION}.dist-info"
    files = {f"{NAME}/libprecast_ort_ep.so": library}
    for name in sorted(os.listdir(PACKAGE)):
        path = os.path.join(PACKAGE, name)
        if os.path.isfile(path):
            with open(path, "rb") as file:
                files[f"{NAME}/{name}"] = file.read()
    metadata = (
        f"Metadata-Version: 2.1\nName: onnxruntime-ep-precast\nVersion: {VERSION}\n"
        "Summary: Precast as a plugin execution provider of ONNX Runtime\n"
        "License: Apache-2.0 OR MIT\nRequires-Python: >=3.10\nRequires-Dist: onnxruntime>=1.24\n"
        f"Description-Content-Type: text/markdown\n\n{readme}"
    )
    files[f"{info}/METADATA"] = metadata.encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: precast\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip('=')},{len(data)}\n"
        for name, data in files.items()
    )
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    wheel = os.path.join(FOLDER, f"{NAME}-{VERSION}-{tag}.whl")
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, DATE)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
    print(wheel)


main()
