"""Messages of widely used tools and languages that name neither a system error nor a telling class.

Each is the text that the tool itself prints, whatever program runs on it.
"""

from __future__ import annotations

import re
from dataclasses import replace

from clusterctl.observe.why.errno_and_signals import (
    DISK,
    LIBRARY_PATH,
    LOOK_AT_PEER,
    MEMORY,
    SHELL_CODES,
    SPACE,
    Diagnosis,
    of_name,
    unresolved,
)

INSTALL = "install it on {node}, or dispatch it with the workspace"
THREADS = (
    "a limit of the account was reached (ulimit -u), or of its container: start fewer threads (OMP_NUM_THREADS in ENV)"
)
DRIVER = "{node} has no working GPU driver: see nvidia-smi there"
GPU_MEMORY = (
    "use smaller batches, or fewer trainers per GPU; clusterctl check shows the free memory of each GPU and the "
    "processes on it, and clusterctl status, while a run is live, what its trainers use"
)
GPU_NUMBER = (
    "a trainer counts the GPUs that were dealt to it from 0: use cuda:0, or start fewer trainers on {node}, so that "
    "each gets more (TRAINERS_PER_NODE)"
)
NO_GPU = "see nvidia-smi on {node}, and what hides GPUs: Host(gpus=0), or CUDA_VISIBLE_DEVICES in ENV or on {node}"
NO_CUDA = "install a build with CUDA: name its index in requirements.txt (--index-url), then run clusterctl setup"
SQLITE = "make sure that its directory exists and that this account can write to it"
LOAD_FIRST = "import that library before the others, or name it in LD_PRELOAD (ENV in conf.py)"
WITHOUT_CUDA = "Torch not compiled with CUDA enabled"
#: The pattern's group, if it has one, is the subject, and takes the place of {} in the words.
KNOWN: tuple[tuple[re.Pattern[str], Diagnosis], ...] = tuple(
    (re.compile(pattern), diagnosis)
    for pattern, diagnosis in (
        (
            r"(?<!\S)(\S+): cannot allocate memory in static TLS block",
            Diagnosis("wrong_library", "a library was loaded too late for its thread-local storage", LOAD_FIRST),
        ),
        (
            r"Watchdog caught collective operation timeout",
            Diagnosis("peer_silent", "a collective operation timed out", LOOK_AT_PEER, about_peer=True),
        ),
        (
            r"\bcan't start new thread\b|\bpthread_create failed\b",
            Diagnosis("limit", "a thread could not be started", THREADS),
        ),
        (
            r": (?:line )?\d+: (\S+): (?:command )?not found$",
            replace(SHELL_CODES[127], words="the command {} was not found"),
        ),
        (
            r"(?<!\S)(\S+): bad interpreter: No such file",
            Diagnosis("missing_program", "the interpreter {} does not exist", "fix the first line of the script"),
        ),
        (
            r"(?<!\S)(\S+): cannot execute: required file not found",
            Diagnosis(
                "missing_program", "the interpreter or loader that {} names does not exist", "fix its first line"
            ),
        ),
        (
            r"\bunable to open database file\b",
            Diagnosis("missing_file", "a database file could not be opened", SQLITE),
        ),
        (
            r"\bdatabase is locked\b",
            Diagnosis("busy", "a database is locked by another process", "give each process a database of its own"),
        ),
        (r"\bdisk I/O error\b", Diagnosis("disk", "a database reported an input/output error", DISK)),
        (r"\bdatabase or disk is full\b", Diagnosis("no_space", "a database could not be written in full", SPACE)),
        (
            r"\b\d+ requested and \d+ written\b|\bunexpected pos \d+ vs \d+|PytorchStreamWriter failed writing file",
            Diagnosis("no_space", "a file could not be written in full", SPACE),
        ),
        (
            r"(?:CUBLAS|CUDNN)_STATUS_ALLOC_FAILED|\bRESOURCE_EXHAUSTED: Out of memory\b|"
            r"\b(?:CUDA|HIP) out of memory\. Tried to allocate|\bCUDA error: out of memory\b|"
            r"\bcudaErrorMemoryAllocation\b|\bCUDA_ERROR_OUT_OF_MEMORY\b|\bOut of memory error on GPU \d|"
            r"\bOOM when allocating tensor\b.*\bGPU\b",
            Diagnosis("out_of_memory", "out of memory on a GPU", GPU_MEMORY),
        ),
        (
            r"Allowed memory size of \d+ bytes exhausted",
            Diagnosis("out_of_memory", "out of memory: the limit of PHP was reached", MEMORY),
        ),
        (
            r"Remote end closed connection without response",
            Diagnosis("peer_gone", "a server closed the connection without an answer", LOOK_AT_PEER, about_peer=True),
        ),
        (
            r"\bport is already allocated\b",
            Diagnosis("address_in_use", "a port is in use", "choose another port, or end the container that has it"),
        ),
        (
            r"unable to find the specified executable file",
            Diagnosis("missing_program", "mpirun did not find the program", "check its path on {node}"),
        ),
        (
            r"Found no NVIDIA driver|no CUDA-capable device is detected|CUDA driver version is insufficient|"
            r"NVIDIA-SMI has failed|\bDriver/library version mismatch\b",
            Diagnosis("device", "there is no usable GPU driver", DRIVER),
        ),
        (rf"^{WITHOUT_CUDA}$", Diagnosis("wrong_library", "torch was built without CUDA", NO_CUDA)),
        (r"\bNo CUDA GPUs are available\b", Diagnosis("device", "the program sees no GPU", NO_GPU)),
        (
            r"\bCUDA error: invalid device ordinal\b",
            Diagnosis("device", "the program chose a GPU that it does not see", GPU_NUMBER),
        ),
        (
            r"(?:ERROR|SUMMARY): AddressSanitizer: ([\w-]+)",
            Diagnosis("crash", "AddressSanitizer found a {}", "fix the code that its report in the log names"),
        ),
        (
            r"Can't locate (\S+)\.pm in @INC",
            Diagnosis("import_error", "the Perl module {} is missing", INSTALL),
        ),
        (
            r"cannot load such file -- (\S+)",
            Diagnosis("import_error", "the Ruby library {} is missing", INSTALL),
        ),
        (
            r"there is no package called ['\"\u2018\u201c]?([\w.]+)",
            Diagnosis("import_error", "the R package {} is missing", INSTALL),
        ),
        (
            r"Cannot find (?:module|package) '([^'\n]+)'",
            Diagnosis("import_error", "the module {} was not found", INSTALL),
        ),
    )
)
#: Exceptions of Java that stand for a system error about a path.
JAVA_ERRNOS = {
    "NoSuchFileException": "ENOENT",
    "AccessDeniedException": "EACCES",
    "FileAlreadyExistsException": "EEXIST",
}
NO_JAVA_CLASS = ("NoClassDefFoundError", "ClassNotFoundException")
NO_JAVA_LIBRARY = re.compile(r"no (\S+) in java\.library\.path")


def of_known(text: str) -> Diagnosis | None:
    """Return the diagnosis of a message in this table, or None."""
    for pattern, diagnosis in KNOWN:
        match = pattern.search(text)
        if match:
            return _about(diagnosis, match[1] if pattern.groups else None)
    return None


def of_java(name: str, message: str) -> Diagnosis | None:
    """Return the diagnosis of a Java exception by its class; None if the class is not telling."""
    library = NO_JAVA_LIBRARY.match(message)
    if name == "UnsatisfiedLinkError" and library:
        return _about(Diagnosis("missing_library", "the library {} is missing", LIBRARY_PATH), library[1])
    subject = message.partition(": ")[0]
    if name in NO_JAVA_CLASS and subject:
        return _about(Diagnosis("import_error", "the class {} is missing", INSTALL), subject)
    if name == "UnknownHostException" and subject:
        return unresolved(subject)
    return of_name(JAVA_ERRNOS.get(name), subject) if subject else None


def _about(diagnosis: Diagnosis, subject: str | None) -> Diagnosis:
    return replace(diagnosis, words=diagnosis.words.replace("{}", subject or "it"), subject=subject)
