from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATE_UNSPECIFIED: _ClassVar[State]
    PLANNED: _ClassVar[State]
    APPLYING: _ClassVar[State]
    ACTIVE: _ClassVar[State]
    RECOVERING: _ClassVar[State]
    RECOVERED: _ClassVar[State]
    STUCK: _ClassVar[State]
STATE_UNSPECIFIED: State
PLANNED: State
APPLYING: State
ACTIVE: State
RECOVERING: State
RECOVERED: State
STUCK: State

class Error(_message.Message):
    __slots__ = ("code", "message", "field", "allowed")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    field: str
    allowed: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., field: _Optional[str] = ..., allowed: _Optional[str] = ...) -> None: ...

class FactsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FactsReply(_message.Message):
    __slots__ = ("node", "kernel", "boot_id", "os", "python", "agent_version", "contract", "cpus", "memory_mib", "clock_unix_s", "boottime_s", "stopped", "machine")
    NODE_FIELD_NUMBER: _ClassVar[int]
    KERNEL_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    OS_FIELD_NUMBER: _ClassVar[int]
    PYTHON_FIELD_NUMBER: _ClassVar[int]
    AGENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    CLOCK_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    BOOTTIME_S_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    node: str
    kernel: str
    boot_id: str
    os: str
    python: str
    agent_version: str
    contract: int
    cpus: int
    memory_mib: int
    clock_unix_s: float
    boottime_s: float
    stopped: bool
    machine: str
    def __init__(self, node: _Optional[str] = ..., kernel: _Optional[str] = ..., boot_id: _Optional[str] = ..., os: _Optional[str] = ..., python: _Optional[str] = ..., agent_version: _Optional[str] = ..., contract: _Optional[int] = ..., cpus: _Optional[int] = ..., memory_mib: _Optional[int] = ..., clock_unix_s: _Optional[float] = ..., boottime_s: _Optional[float] = ..., stopped: _Optional[bool] = ..., machine: _Optional[str] = ...) -> None: ...

class ProbeRequest(_message.Message):
    __slots__ = ("again",)
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    again: bool
    def __init__(self, again: _Optional[bool] = ...) -> None: ...

class Capability(_message.Message):
    __slots__ = ("name", "available", "reason", "remedy")
    NAME_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REMEDY_FIELD_NUMBER: _ClassVar[int]
    name: str
    available: bool
    reason: str
    remedy: str
    def __init__(self, name: _Optional[str] = ..., available: _Optional[bool] = ..., reason: _Optional[str] = ..., remedy: _Optional[str] = ...) -> None: ...

class FaultSupport(_message.Message):
    __slots__ = ("fault", "available", "missing")
    FAULT_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    fault: str
    available: bool
    missing: _containers.RepeatedCompositeFieldContainer[Missing]
    def __init__(self, fault: _Optional[str] = ..., available: _Optional[bool] = ..., missing: _Optional[_Iterable[_Union[Missing, _Mapping]]] = ...) -> None: ...

class Missing(_message.Message):
    __slots__ = ("capability", "reason", "remedy")
    CAPABILITY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REMEDY_FIELD_NUMBER: _ClassVar[int]
    capability: str
    reason: str
    remedy: str
    def __init__(self, capability: _Optional[str] = ..., reason: _Optional[str] = ..., remedy: _Optional[str] = ...) -> None: ...

class ProbeReply(_message.Message):
    __slots__ = ("capabilities", "faults")
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    capabilities: _containers.RepeatedCompositeFieldContainer[Capability]
    faults: _containers.RepeatedCompositeFieldContainer[FaultSupport]
    def __init__(self, capabilities: _Optional[_Iterable[_Union[Capability, _Mapping]]] = ..., faults: _Optional[_Iterable[_Union[FaultSupport, _Mapping]]] = ...) -> None: ...

class PlanRequest(_message.Message):
    __slots__ = ("id", "fault", "parameters_json")
    ID_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_JSON_FIELD_NUMBER: _ClassVar[int]
    id: str
    fault: str
    parameters_json: str
    def __init__(self, id: _Optional[str] = ..., fault: _Optional[str] = ..., parameters_json: _Optional[str] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("kind", "description", "resources", "json")
    KIND_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    kind: str
    description: str
    resources: _containers.RepeatedScalarFieldContainer[str]
    json: str
    def __init__(self, kind: _Optional[str] = ..., description: _Optional[str] = ..., resources: _Optional[_Iterable[str]] = ..., json: _Optional[str] = ...) -> None: ...

class PlanReply(_message.Message):
    __slots__ = ("fault", "parameters_json", "target", "backend", "steps", "covers", "not_covered", "warnings", "operator_sees", "reversible", "missing", "risks", "target_json")
    class RisksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    FAULT_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_JSON_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    COVERS_FIELD_NUMBER: _ClassVar[int]
    NOT_COVERED_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_SEES_FIELD_NUMBER: _ClassVar[int]
    REVERSIBLE_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    RISKS_FIELD_NUMBER: _ClassVar[int]
    TARGET_JSON_FIELD_NUMBER: _ClassVar[int]
    fault: str
    parameters_json: str
    target: str
    backend: str
    steps: _containers.RepeatedCompositeFieldContainer[Step]
    covers: _containers.RepeatedScalarFieldContainer[str]
    not_covered: _containers.RepeatedScalarFieldContainer[str]
    warnings: _containers.RepeatedScalarFieldContainer[str]
    operator_sees: str
    reversible: str
    missing: _containers.RepeatedCompositeFieldContainer[Missing]
    risks: _containers.ScalarMap[str, str]
    target_json: str
    def __init__(self, fault: _Optional[str] = ..., parameters_json: _Optional[str] = ..., target: _Optional[str] = ..., backend: _Optional[str] = ..., steps: _Optional[_Iterable[_Union[Step, _Mapping]]] = ..., covers: _Optional[_Iterable[str]] = ..., not_covered: _Optional[_Iterable[str]] = ..., warnings: _Optional[_Iterable[str]] = ..., operator_sees: _Optional[str] = ..., reversible: _Optional[str] = ..., missing: _Optional[_Iterable[_Union[Missing, _Mapping]]] = ..., risks: _Optional[_Mapping[str, str]] = ..., target_json: _Optional[str] = ...) -> None: ...

class ApplyRequest(_message.Message):
    __slots__ = ("id", "fault", "parameters_json", "lease_s")
    ID_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_JSON_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    id: str
    fault: str
    parameters_json: str
    lease_s: float
    def __init__(self, id: _Optional[str] = ..., fault: _Optional[str] = ..., parameters_json: _Optional[str] = ..., lease_s: _Optional[float] = ...) -> None: ...

class Hit(_message.Message):
    __slots__ = ("sequence", "time_us", "pid", "tid", "comm", "call", "where", "answer")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    TID_FIELD_NUMBER: _ClassVar[int]
    COMM_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    time_us: int
    pid: int
    tid: int
    comm: str
    call: str
    where: str
    answer: str
    def __init__(self, sequence: _Optional[int] = ..., time_us: _Optional[int] = ..., pid: _Optional[int] = ..., tid: _Optional[int] = ..., comm: _Optional[str] = ..., call: _Optional[str] = ..., where: _Optional[str] = ..., answer: _Optional[str] = ...) -> None: ...

class Sign(_message.Message):
    __slots__ = ("kind", "what", "when", "seen", "found")
    KIND_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    WHEN_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    kind: str
    what: str
    when: str
    seen: bool
    found: str
    def __init__(self, kind: _Optional[str] = ..., what: _Optional[str] = ..., when: _Optional[str] = ..., seen: _Optional[bool] = ..., found: _Optional[str] = ...) -> None: ...

class Evidence(_message.Message):
    __slots__ = ("armed", "hits", "counters", "log", "log_gap", "notes", "samples", "lost", "signs")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ARMED_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    LOG_GAP_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    SIGNS_FIELD_NUMBER: _ClassVar[int]
    armed: bool
    hits: int
    counters: _containers.ScalarMap[str, int]
    log: _containers.RepeatedScalarFieldContainer[str]
    log_gap: bool
    notes: _containers.RepeatedScalarFieldContainer[str]
    samples: _containers.RepeatedCompositeFieldContainer[Hit]
    lost: _containers.RepeatedScalarFieldContainer[str]
    signs: _containers.RepeatedCompositeFieldContainer[Sign]
    def __init__(self, armed: _Optional[bool] = ..., hits: _Optional[int] = ..., counters: _Optional[_Mapping[str, int]] = ..., log: _Optional[_Iterable[str]] = ..., log_gap: _Optional[bool] = ..., notes: _Optional[_Iterable[str]] = ..., samples: _Optional[_Iterable[_Union[Hit, _Mapping]]] = ..., lost: _Optional[_Iterable[str]] = ..., signs: _Optional[_Iterable[_Union[Sign, _Mapping]]] = ...) -> None: ...

class Injection(_message.Message):
    __slots__ = ("id", "node", "fault", "parameters_json", "state", "target", "backend", "lease_s", "expires_in_s", "evidence", "residue", "reason", "error", "age_s", "data_lost")
    ID_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_JSON_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_S_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    RESIDUE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    DATA_LOST_FIELD_NUMBER: _ClassVar[int]
    id: str
    node: str
    fault: str
    parameters_json: str
    state: State
    target: str
    backend: str
    lease_s: float
    expires_in_s: float
    evidence: Evidence
    residue: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    error: str
    age_s: float
    data_lost: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[str] = ..., node: _Optional[str] = ..., fault: _Optional[str] = ..., parameters_json: _Optional[str] = ..., state: _Optional[_Union[State, str]] = ..., target: _Optional[str] = ..., backend: _Optional[str] = ..., lease_s: _Optional[float] = ..., expires_in_s: _Optional[float] = ..., evidence: _Optional[_Union[Evidence, _Mapping]] = ..., residue: _Optional[_Iterable[str]] = ..., reason: _Optional[str] = ..., error: _Optional[str] = ..., age_s: _Optional[float] = ..., data_lost: _Optional[_Iterable[str]] = ...) -> None: ...

class ExtendRequest(_message.Message):
    __slots__ = ("id", "lease_s")
    ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    id: str
    lease_s: float
    def __init__(self, id: _Optional[str] = ..., lease_s: _Optional[float] = ...) -> None: ...

class RecoverRequest(_message.Message):
    __slots__ = ("ids", "all", "stop")
    class Stop(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KEEP: _ClassVar[RecoverRequest.Stop]
        SET: _ClassVar[RecoverRequest.Stop]
        CLEAR: _ClassVar[RecoverRequest.Stop]
    KEEP: RecoverRequest.Stop
    SET: RecoverRequest.Stop
    CLEAR: RecoverRequest.Stop
    IDS_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[str]
    all: bool
    stop: RecoverRequest.Stop
    def __init__(self, ids: _Optional[_Iterable[str]] = ..., all: _Optional[bool] = ..., stop: _Optional[_Union[RecoverRequest.Stop, str]] = ...) -> None: ...

class RecoverReply(_message.Message):
    __slots__ = ("injections", "stopped")
    INJECTIONS_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    injections: _containers.RepeatedCompositeFieldContainer[Injection]
    stopped: bool
    def __init__(self, injections: _Optional[_Iterable[_Union[Injection, _Mapping]]] = ..., stopped: _Optional[bool] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("ended", "ids")
    ENDED_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    ended: bool
    ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, ended: _Optional[bool] = ..., ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ListReply(_message.Message):
    __slots__ = ("injections", "stopped")
    INJECTIONS_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    injections: _containers.RepeatedCompositeFieldContainer[Injection]
    stopped: bool
    def __init__(self, injections: _Optional[_Iterable[_Union[Injection, _Mapping]]] = ..., stopped: _Optional[bool] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("id", "interval_s")
    ID_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    id: str
    interval_s: float
    def __init__(self, id: _Optional[str] = ..., interval_s: _Optional[float] = ...) -> None: ...

class ResidueRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResidueEntry(_message.Message):
    __slots__ = ("category", "item", "before", "after", "injection", "foreign")
    CATEGORY_FIELD_NUMBER: _ClassVar[int]
    ITEM_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    INJECTION_FIELD_NUMBER: _ClassVar[int]
    FOREIGN_FIELD_NUMBER: _ClassVar[int]
    category: str
    item: str
    before: str
    after: str
    injection: str
    foreign: bool
    def __init__(self, category: _Optional[str] = ..., item: _Optional[str] = ..., before: _Optional[str] = ..., after: _Optional[str] = ..., injection: _Optional[str] = ..., foreign: _Optional[bool] = ...) -> None: ...

class ResidueReply(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[ResidueEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[ResidueEntry, _Mapping]]] = ...) -> None: ...

class SetClockRequest(_message.Message):
    __slots__ = ("unix_s",)
    UNIX_S_FIELD_NUMBER: _ClassVar[int]
    unix_s: float
    def __init__(self, unix_s: _Optional[float] = ...) -> None: ...

class SetClockReply(_message.Message):
    __slots__ = ("before_unix_s", "after_unix_s")
    BEFORE_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    AFTER_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    before_unix_s: float
    after_unix_s: float
    def __init__(self, before_unix_s: _Optional[float] = ..., after_unix_s: _Optional[float] = ...) -> None: ...

class ObserveRequest(_message.Message):
    __slots__ = ("signs_json", "mark_json")
    SIGNS_JSON_FIELD_NUMBER: _ClassVar[int]
    MARK_JSON_FIELD_NUMBER: _ClassVar[int]
    signs_json: str
    mark_json: str
    def __init__(self, signs_json: _Optional[str] = ..., mark_json: _Optional[str] = ...) -> None: ...

class ObserveReply(_message.Message):
    __slots__ = ("mark_json", "signs")
    MARK_JSON_FIELD_NUMBER: _ClassVar[int]
    SIGNS_FIELD_NUMBER: _ClassVar[int]
    mark_json: str
    signs: _containers.RepeatedCompositeFieldContainer[Sign]
    def __init__(self, mark_json: _Optional[str] = ..., signs: _Optional[_Iterable[_Union[Sign, _Mapping]]] = ...) -> None: ...

class PrepareDiskRequest(_message.Message):
    __slots__ = ("name", "device", "size_mib", "file", "mount", "format", "erase", "undo")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    SIZE_MIB_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    MOUNT_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    ERASE_FIELD_NUMBER: _ClassVar[int]
    UNDO_FIELD_NUMBER: _ClassVar[int]
    name: str
    device: str
    size_mib: int
    file: str
    mount: str
    format: str
    erase: bool
    undo: bool
    def __init__(self, name: _Optional[str] = ..., device: _Optional[str] = ..., size_mib: _Optional[int] = ..., file: _Optional[str] = ..., mount: _Optional[str] = ..., format: _Optional[str] = ..., erase: _Optional[bool] = ..., undo: _Optional[bool] = ...) -> None: ...

class PreparedDisk(_message.Message):
    __slots__ = ("name", "source", "device", "sectors", "filesystem", "mount", "file", "problem")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    SECTORS_FIELD_NUMBER: _ClassVar[int]
    FILESYSTEM_FIELD_NUMBER: _ClassVar[int]
    MOUNT_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    name: str
    source: str
    device: str
    sectors: int
    filesystem: str
    mount: str
    file: bool
    problem: str
    def __init__(self, name: _Optional[str] = ..., source: _Optional[str] = ..., device: _Optional[str] = ..., sectors: _Optional[int] = ..., filesystem: _Optional[str] = ..., mount: _Optional[str] = ..., file: _Optional[bool] = ..., problem: _Optional[str] = ...) -> None: ...

class PrepareDiskReply(_message.Message):
    __slots__ = ("disks", "changed")
    DISKS_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    disks: _containers.RepeatedCompositeFieldContainer[PreparedDisk]
    changed: bool
    def __init__(self, disks: _Optional[_Iterable[_Union[PreparedDisk, _Mapping]]] = ..., changed: _Optional[bool] = ...) -> None: ...

class RepairDiskRequest(_message.Message):
    __slots__ = ("id", "disk")
    ID_FIELD_NUMBER: _ClassVar[int]
    DISK_FIELD_NUMBER: _ClassVar[int]
    id: str
    disk: str
    def __init__(self, id: _Optional[str] = ..., disk: _Optional[str] = ...) -> None: ...

class RepairDiskReply(_message.Message):
    __slots__ = ("done", "lost")
    DONE_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    done: _containers.RepeatedScalarFieldContainer[str]
    lost: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, done: _Optional[_Iterable[str]] = ..., lost: _Optional[_Iterable[str]] = ...) -> None: ...

class AuditRequest(_message.Message):
    __slots__ = ("after", "limit")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    after: int
    limit: int
    def __init__(self, after: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class AuditEntry(_message.Message):
    __slots__ = ("number", "time_unix_s", "boot_id", "boottime_s", "who", "where", "method", "what_json", "result", "message", "took_s")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TIME_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    BOOTTIME_S_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    WHAT_JSON_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TOOK_S_FIELD_NUMBER: _ClassVar[int]
    number: int
    time_unix_s: float
    boot_id: str
    boottime_s: float
    who: str
    where: str
    method: str
    what_json: str
    result: str
    message: str
    took_s: float
    def __init__(self, number: _Optional[int] = ..., time_unix_s: _Optional[float] = ..., boot_id: _Optional[str] = ..., boottime_s: _Optional[float] = ..., who: _Optional[str] = ..., where: _Optional[str] = ..., method: _Optional[str] = ..., what_json: _Optional[str] = ..., result: _Optional[str] = ..., message: _Optional[str] = ..., took_s: _Optional[float] = ...) -> None: ...

class AuditReply(_message.Message):
    __slots__ = ("entries", "oldest", "problems")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[AuditEntry]
    oldest: int
    problems: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, entries: _Optional[_Iterable[_Union[AuditEntry, _Mapping]]] = ..., oldest: _Optional[int] = ..., problems: _Optional[_Iterable[str]] = ...) -> None: ...
