"""The client programs: what they need, how they are built, and the command line of each.

Everything that is built or installed goes to `target/compat`, so that the tree stays clean.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BUILD = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "compat"

sys.path.insert(0, str(HERE.parent / "peers"))

import jars  # noqa: E402


class BuildError(Exception):
    """A program cannot be built here; the text says what is missing."""


def execute(command, **options):
    """Run a build step; its output is shown only when it fails."""
    done = subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, **options)
    if done.returncode != 0:
        raise BuildError(f"{' '.join(map(str, command[:4]))} ... failed:\n{done.stdout.decode(errors='replace')[-3000:]}")


def require(program, reason):
    """Fail clearly when a tool is missing."""
    if shutil.which(program) is None:
        raise BuildError(f"{program} is not installed; it is needed {reason}")
    return program


def python():
    """The Python program: a virtual environment with the official client of a fixed version."""
    requirements = HERE / "python/requirements.txt"
    folder = BUILD / "python-venv"
    installed = folder / "requirements.txt"
    interpreter = folder / "bin/python"
    if not installed.exists() or installed.read_text() != requirements.read_text():
        shutil.rmtree(folder, ignore_errors=True)
        execute([sys.executable, "-m", "venv", folder])
        execute([interpreter, "-m", "pip", "install", "--quiet", "--requirement", requirements])
        shutil.copy(requirements, installed)
    return [interpreter, HERE / "python/compat.py"]


def compile_java(sources, folder):
    """Compile a folder of Java sources against the jars of the peers; returns the class path."""
    require("javac", "to build the Java client program (a JDK of version 17 or later)")
    class_path = f"{jars.ensure()}/*"
    execute(["javac", "-nowarn", "-d", folder, "-cp", class_path, *sorted(sources.glob("*.java"))])
    return f"{folder}:{class_path}"


def java_launcher(class_path, main_class):
    """The command line of a compiled Java client program."""
    return [require("java", "to run the Java client program"), "-Xmx512m", "-XX:TieredStopAtLevel=1",
            "-XX:+UseSerialGC", "-XX:-UsePerfData", f"-Dlog4j2.configurationFile={HERE / 'java/log4j2.xml'}",
            "-Dio.netty.tryReflectionSetAccessible=true", "--add-opens=java.base/java.nio=ALL-UNNAMED",
            "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED", "-cp", class_path, main_class]


def java():
    """The Java program, compiled against the jars of the peers."""
    return java_launcher(compile_java(HERE / "java", BUILD / "java"), "Compat")


def go():
    """The Go program."""
    require("go", "to build the Go client program (Go 1.25 or later)")
    binary = BUILD / "go/compat"
    execute(["go", "build", "-o", binary, "."], cwd=HERE / "go")
    return [binary]


def example(name):
    """A program on the project's own client: built without optimisation, since what it does is judged and not how fast."""
    execute(["cargo", "build", "--locked", "--example", name], cwd=ROOT)
    return [BUILD.parent / "debug/examples" / name]


def rust():
    """The program with the project's own client."""
    return example("compat-client")


def further_cases(language):
    """The cases that only this program has."""
    if language != "rust":
        return []
    return re.findall(r'case!\("(\w+)", further::', (HERE / "rust/main.rs").read_text())


LANGUAGES = {"python": python, "java": java, "go": go, "rust": rust}
