"""The jars of Apache Pulsar: where they are cached, how they come there, and the java command line that uses them."""

import fcntl
import os
import pathlib
import shutil
import subprocess

POM = pathlib.Path(__file__).resolve().with_name("pom.xml")

# Packages that Pulsar, BookKeeper and Netty open by reflection; without them a broker dies at start on Java 17.
OPENED_PACKAGES = {
    "java.base": [
        "java.io", "java.lang", "java.net", "java.nio", "java.util", "java.util.zip",
        "jdk.internal.misc", "jdk.internal.platform", "sun.net", "sun.nio.ch",
    ],
    "java.management": ["sun.management"],
    "jdk.management": ["com.sun.management.internal"],
}


class JarsError(Exception):
    """The jars cannot be had: Maven or Java is missing, or Maven failed."""


def cache_folder():
    """The folder of the jars. PULSEGATE_PULSAR_JARS names another one."""
    named = os.environ.get("PULSEGATE_PULSAR_JARS")
    return pathlib.Path(named) if named else pathlib.Path.home() / ".cache/pulsegate-peers/apache-pulsar"


def ensure():
    """Return the folder of the jars; download them (about 240 MB) unless a complete set is there.

    A file lock keeps two callers from filling the same folder at once.
    """
    folder = cache_folder()
    marker = folder / ".complete"
    if marker.exists():
        return folder
    if shutil.which("mvn") is None:
        raise JarsError("Maven (mvn) is not installed; it is needed once, to download the jars of Apache Pulsar")
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not marker.exists():
            command = ["mvn", "--batch-mode", "--quiet", "--file", str(POM), "dependency:copy-dependencies",
                       f"-DoutputDirectory={folder}"]
            # Maven talks on standard output; ours may be read by a program.
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if done.returncode != 0:
                raise JarsError("Maven could not download the jars:\n" + done.stdout.decode(errors="replace")[-4000:])
            marker.touch()
    return folder


def java_command(main_class, arguments, heap="384m", direct="256m", log_config=None):
    """The command line that runs `main_class` of the jars.

    The JVM is tuned for a small test machine: the serial collector and the first compiler only, so that several
    servers start within seconds on two cores. PULSEGATE_PEER_JAVA_OPTIONS is put last and can undo each of it
    (a speed comparison sets `-XX:+UseG1GC -XX:TieredStopAtLevel=4 -Xmx2g`).
    """
    java = shutil.which("java")
    if java is None:
        raise JarsError("Java is not installed; Apache Pulsar 4.0 needs Java 17 or later")
    options = [f"-Xmx{heap}", f"-XX:MaxDirectMemorySize={direct}", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
               "-Dio.netty.tryReflectionSetAccessible=true", "-Djava.net.preferIPv4Stack=true"]
    extra = os.environ.get("PULSEGATE_PEER_JAVA_OPTIONS", "").split()
    if not any(option.startswith("-XX:+Use") and option.endswith("GC") for option in extra):
        options.append("-XX:+UseSerialGC")
    for module, packages in OPENED_PACKAGES.items():
        for package in packages:
            options += ["--add-opens", f"{module}/{package}=ALL-UNNAMED"]
    if log_config is not None:
        options.append(f"-Dlog4j2.configurationFile={log_config}")
    return [java, *options, *extra, "-cp", f"{ensure()}/*", main_class, *map(str, arguments)]
