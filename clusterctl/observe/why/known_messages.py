"""Messages of widely used tools and languages that name neither a system error nor a telling class.

Each is the text that the tool itself prints, whatever program runs on it.
"""

from __future__ import annotations

import re
from dataclasses import replace

from clusterctl.observe.why.errno_and_signals import (
    DISK,
    ENDPOINT,
    FILES,
    LIBRARY_PATH,
    LOCKED,
    LOOK_AT_PEER,
    MEMORY,
    QUOTED,
    SHELL_CODES,
    SPACE,
    Diagnosis,
    of_errno,
    of_name,
    unquoted,
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
NOT_AN_OBJECT = (
    "its file is of another machine, damaged or cut off: see file {subject} on {node}, and build or install it for "
    "that machine"
)
HOST_KEY = (
    "the host was installed again, or another one has its address: compare its key with the owner of the host, then "
    "ssh-keygen -R {subject} on {node} and accept the new key"
)
NEW_HOST = "put its key into known_hosts of the account on {node}: ssh-keyscan {subject}, compared with its owner's"
SSH_ACCOUNT = "add the public key of the account on {node} to the authorized_keys of that host or service"
SSH_KEY = "chmod 600 the private key on {node}, and chmod 700 its directory"
SSH_HUNG_UP = "the SSH server refused or dropped the connection: see its log, MaxStartups and the network between them"
LOAD_FIRST = "import that library before the others, or name it in LD_PRELOAD (ENV in conf.py)"
SHARED_MEMORY = "make it larger (docker --shm-size; df -h /dev/shm on {node}), or use fewer processes per node"
INTERFACE = "name one that {node} has (ip addr there): GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME in ENV, or NIC"
CREDENTIALS = "give the account on {node} credentials (a file there, or variables in ENV) with access to that address"
WITHOUT_CUDA = "Torch not compiled with CUDA enabled"
#: The pattern's group, if it has one, is the subject, and takes the place of {} in the words.
KNOWN: tuple[tuple[re.Pattern[str], Diagnosis], ...] = tuple(
    (re.compile(pattern), diagnosis)
    for pattern, diagnosis in (
        (
            r"(?<!\S)(\S+): (?:wrong ELF class|cannot open shared object file: Exec format|"
            r"invalid ELF header|file too short|ELF load command|ELF file.s|"
            r"ELF file (?:version|OS ABI|ABI version)|only ET_DYN|cannot read file data|file in wrong format)|"
            r"\bmach-o file, but is an incompatible architecture\b",
            Diagnosis("wrong_library", "the library {} is of another machine, or damaged", NOT_AN_OBJECT),
        ),
        (
            r"(?i)\bunable to (?:synchronously )?lock file, errno = 11\b",
            Diagnosis("busy", "another process has locked the file", LOCKED),
        ),
        (
            r"(?i)\bcould not set lock on file|\bfile lock \S+ could not be acquired|\blmdb\.LockError\b|"
            r"\bwhile lock file: |\bIO error: lock |\bcould not (?:get|acquire|obtain) lock\b|"
            r"\b(?:unable|failed|could not|cannot) (?:to )?"
            r"(?:(?:acquire|obtain|get) (?:(?:the|a|file) )*lock|lock (?:the )?(?:config )?(?:file|database))\b|"
            r"\b(?:file|database|directory|repository) (?:is|was) already locked\b|"
            r"\block is (?:already )?held by\b|\block hold by current process\b|\blocked by another process\b",
            Diagnosis("busy", "another process has the lock", LOCKED),
        ),
        (
            r"Unable to create '[^'\n]*\.lock': File exists|index\.lock\b.{0,200}\bFile exists",
            Diagnosis("busy", "a lock file exists", "if no git runs there any more, delete the lock file on {node}"),
        ),
        (
            r"\bHost key for (?:server )?['\"]?(\[?[\w.:-]+?\]?(?::\d+)?)['\"]? (?:has changed|does not match)",
            Diagnosis("host_key", "the SSH host key of {} has changed", HOST_KEY),
        ),
        (
            r"\bNo \S+ host key is known for (\S+)|\bServer '?([\w.:-]+)'? not found in known_hosts",
            Diagnosis("host_key", "the SSH host key of {} is not known", NEW_HOST),
        ),
        (
            r"\b[Cc]ould not resolve (?:host(?:name)?):? ([\w.-]+)",
            replace(unresolved(None), words="the host name {} could not be resolved"),
        ),
        (
            r"\bmonitoredBarrier\b.{0,200}\brank\b|\bBarrier timed out\b",
            Diagnosis("peer_silent", "another process did not reach a barrier", LOOK_AT_PEER, about_peer=True),
        ),
        (
            r"REMOTE HOST IDENTIFICATION HAS CHANGED|\bHost key verification failed\b|\bHostKeyNotVerifiable\b|"
            r"\bHost key is not trusted\b|\bBadHostKeyException\b",
            Diagnosis("host_key", "the SSH host key of the host could not be verified", HOST_KEY),
        ),
        (
            r"\bPermission denied \((?:publickey|password|keyboard|gssapi|hostbased)|"
            r"\bToo many authentication failures\b|\bNo more authentication methods\b|"
            r"^(?:paramiko\S*: )?Authentication failed\.$|\bPermission denied, please try again\b",
            Diagnosis("permission", "the SSH server did not accept the account or its key", SSH_ACCOUNT),
        ),
        (
            r"UNPROTECTED PRIVATE KEY FILE|\bBad owner or permissions on |^Load key .*: bad permissions\b",
            Diagnosis("permission", "SSH refused a key or configuration that others may read", SSH_KEY),
        ),
        (
            r"\bkex_exchange_identification: |\bssh_exchange_identification: |"
            r"^Connection (?:closed|reset) by \S+ port \d+|\bConnection to \S+ closed by remote host\b",
            Diagnosis("peer_gone", "the SSH server closed the connection", SSH_HUNG_UP, about_peer=True),
        ),
        (
            r"(?i)\bconnection\b[^.;\n]{0,40}\b(?:was )?(?:closed|lost|dropped|terminated|broken|aborted)"
            r"(?: unexpectedly)? "
            r"by (?:the )?(?:peer|other side|remote host|remote server|(?:host|server)(?! \w))\b|\bSocket closed\b|"
            r"\bpeer (?:has )?(?:closed|dropped) the connection\b|\bNCCL communicator was aborted\b|"
            r"\bncclRemoteError\b|\bremote process exited\b",
            Diagnosis("peer_gone", "another process closed the connection", LOOK_AT_PEER, about_peer=True),
        ),
        (
            r"(?<!\S)(\S+): cannot allocate memory in static TLS block",
            Diagnosis("wrong_library", "a library was loaded too late for its thread-local storage", LOAD_FIRST),
        ),
        (
            r"Watchdog caught collective operation timeout|\b[Tt]imed out (?:after \d+ \w+ )?waiting\b|"
            r"\bconnectFullMesh failed\b",
            Diagnosis("peer_silent", "other processes did not answer in time", LOOK_AT_PEER, about_peer=True),
        ),
        (
            r"\b(?:Unable to find address for: |no socket interface found\b ?)(\S*)",
            Diagnosis("address", "there is no network interface {}", INTERFACE),
        ),
        (
            r"\bError while creating shared memory segment (\S+)",
            Diagnosis("no_space", "the shared memory is full: {}", SHARED_MEMORY),
        ),
        (
            r"\breceived \d+ items of ancdata\b",
            Diagnosis("open_files", "too many open files", FILES),
        ),
        (
            r"\bUnable to locate credentials\b|\bAn error occurred \((?:40[13]|AccessDenied)\)",
            Diagnosis("permission", "a server did not accept the credentials, or there were none", CREDENTIALS),
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
            r"\bOOM when allocating tensor\b.{0,200}\bGPU\b",
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
            return _about(diagnosis, next(filter(None, match.groups()), None))
    return None


#: What readers of a format report of a file that is damaged or of another format, with the format's name.
FORMATS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), name)
    for pattern, name in (
        (
            r"\bParquet magic bytes not found\b|\bParquet file size is \d+ bytes\b|\bInvalid Parquet file\b|"
            r"\bnot a Parquet file\b|\bfile must end with PAR1\b|\bCouldn't deserialize thrift\b|"
            r"\bNo magic bytes found at (?:end|beginning)\b",
            "Parquet",
        ),
        (r"\bnot an Arrow file\b|\bnot a Feather\b", "Arrow"),
        (r"\bNot an ORC file\b|\btoo small to be a valid ORC\b|\bMalformed ORC file\b", "ORC"),
        (r"\bnot an Avro data file\b|\bavro\b.{0,200}\bmagic\b|\bis it an avro file\b", "Avro"),
        (
            r"\bfile signature not found\b|\bTruncated file: eof = |\bnot an HDF5 file\b|"
            r"\bsymbol table node signature\b",
            "HDF5",
        ),
        (r"\bNetCDF: (?:Unknown file format|HDF error)\b|\bnot a valid NetCDF\b", "NetCDF"),
        (
            r"\bnot a zip file\b|\bBad magic number for (?:central dir|file header)|\bzip END header not found\b|"
            r"\bBad CRC-32 for file\b|\bEnd-of-central-directory signature not found\b|\berror in opening zip file\b|"
            r"\bfailed finding central directory\b|\bPytorchStreamReader failed\b|\bheader or archive is corrupted\b",
            "zip",
        ),
        (
            r"\bnot a gzip(?:ped)? file\b|\bnot in gzip format\b|\bincorrect header check\b|\bCRC check failed\b|"
            r"\binvalid gzip header\b|\bgzip: invalid header\b|\bgzip: .{0,200}: unexpected end of file$",
            "gzip",
        ),
        (
            r"\bended before the end-of-stream marker\b|\bend-of-stream marker was reached\b|"
            r"^Error -\d while decompressing data\b",
            "compressed",
        ),
        (r"\bnot a bzip2\b|^Invalid data stream$", "bzip2"),
        (
            r"\bInput format not supported by decoder\b|\bCorrupt input data\b|"
            r"\bxz: .{0,200}: File format not recognized$",
            "xz",
        ),
        (r"\bzstd: .{0,200}: unsupported format\b|\bUnknown frame descriptor\b", "zstd"),
        (
            r"\bmagic string is not correct\b|\bEOF: reading (?:magic|array)\b|\binvalid npy\b|"
            r"^No data left in file$|^Failed to interpret file .{0,200} as a pickle$",
            "numpy",
        ),
        (
            r"\bcannot identify image file\b|\bNot a JPEG file\b|\bNot a PNG file\b|\bunrecognized image file\b|"
            r"\bimage file is truncated\b|\bbroken PNG file\b|\bNot a TIFF or MDI file\b",
            "image",
        ),
        (r"\bfile is not a database\b|\bdatabase disk image is malformed\b", "SQLite"),
        (
            r"\binvalid load key\b|^Ran out of input$|\bpickle data was truncated\b|\bunpickling stack underflow\b",
            "pickle",
        ),
        (
            r"\bdeserializing header\b|\bHeaderTooLarge\b|\bInvalidHeaderDeserial|\bMetadataIncompleteBuffer\b",
            "safetensors",
        ),
        (
            r"\bfile could not be opened successfully\b|\bdoes not look like a tar archive\b|"
            r"\binvalid tar (?:header|magic)\b|^unexpected end of data$",
            "tar",
        ),
        (r"\bcorrupted record at \d+|\btruncated record at \d+|\bInvalid TFRecord\b", "TFRecord"),
        (r"\b(?:invalid|bad|wrong) magic number(?:$|[;:,.(]| \d| in )|\bmagic number mismatch\b", "such"),
        (r"\bGGUF magic\b|\bcould not parse ModelProto\b|\(bad magic\)", "model"),
    )
)
DAMAGED = (
    "compare its size and checksum with the original and across the nodes, for example "
    "clusterctl exec --in-job {job} -- ls -l {subject}; then bring it again"
)
PATH_LIKE = re.compile(
    r"(?<![^\s'\":,()\u2018\u2019])[^\s'\":,()\u2018\u2019]*[^\s'\":,()/.]\.\w{1,12}(?![\w.])|(?<!\w)/[^\s'\":,()]+"
)


def of_format(text: str) -> Diagnosis | None:
    """Return the diagnosis of a file that is damaged or of another format than its reader expects, or None."""
    said = unquoted(text)
    name = next((name for pattern, name in FORMATS if pattern.search(said)), None)
    if name is None:
        return None
    quoted = [one for one in QUOTED.findall(text) if PATH_LIKE.fullmatch(one)]
    bare = [one for one in PATH_LIKE.findall(said) if "." in one]
    path = next(iter([*quoted, *bare]), None)
    words = f"{path or 'a file'} is damaged, or no {name} file".replace("no such file", "of another format")
    advice = DAMAGED if path else "see its traceback and last lines for the file, and bring it again"
    return Diagnosis("wrong_file", words, advice, subject=path)


#: The status of a call to another process, as gRPC and absl name it.
STATUS = re.compile(
    r"\bStatusCode\.([A-Z_]+)|\bcode = ([A-Z]\w+) desc\b|\bstatus: ([A-Z][a-z]\w+), message: |"
    r"^(?:\w*Status: |\w*Error: )?((?:UNAVAILABLE|DEADLINE_EXCEEDED|UNAUTHENTICATED|DATA_LOSS)): "
)
DETAILS = re.compile(r"\b(?:details|desc|message)(?: =|:) \"?(.*)")
#: By the status without underscores, in lower case: the kind, and words.
STATUSES = {
    "unavailable": ("peer_silent", "the server is not available"),
    "deadlineexceeded": ("peer_silent", "the server did not answer within the deadline of the call"),
    "cancelled": ("peer_gone", "the call was cancelled"),
    "aborted": ("peer_gone", "the server aborted the call"),
    "unauthenticated": ("permission", "the server did not accept the credentials"),
    "permissiondenied": ("permission", "the server did not permit the call"),
    "resourceexhausted": ("limit", "a limit of the server or of the size of a message was reached"),
    "dataloss": ("wrong_file", "data is damaged or cut off"),
}


def of_status(text: str) -> Diagnosis | None:
    """Return the diagnosis of a failed call of gRPC, or of a status of absl, by the system error in its details."""
    match = STATUS.search(text)
    status = next(filter(None, match.groups())).replace("_", "").lower() if match else ""
    if match is None or (status not in STATUSES and "StatusCode." not in match[0]):
        return None
    details = DETAILS.search(text)
    said = (details[1] if details else text).replace('"', "").replace("\\", "")
    system = of_errno(said)
    if system is not None:
        return system
    answer = f"the server answered {match[0].removeprefix('StatusCode.')}: {said.partition(' debug_error_string')[0]}"
    kind, words = STATUSES.get(status, ("exception", answer))
    endpoint, peer = ENDPOINT.search(said), kind.startswith("peer_")
    words = f"{words}: {endpoint[1]}" if endpoint else words
    advice = LOOK_AT_PEER if peer else "see its message for the limit or the permission that the server names"
    return Diagnosis(kind, words, advice, subject=endpoint[1] if endpoint else None, about_peer=peer)


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
