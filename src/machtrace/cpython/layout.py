"""Offsets in CPython's structures for threads, frames and code, by version.

From 3.13 on the interpreter has them itself, in ``_Py_DebugOffsets`` at the start of ``_PyRuntime``
(``Include/internal/pycore_runtime.h`` of 3.13, ``pycore_debug_offsets.h`` of 3.14). Those of 3.11
and 3.12 were computed by a C compiler from their headers on 64-bit systems.
"""

from __future__ import annotations

import re
from struct import Struct

from machtrace.errors import FormatError
from machtrace.frozen import dataclass
from machtrace.model.options import WITHOUT_PYTHON

COOKIE = b"xdebugpy"
HEAD_SIZE = 1024
"""Bytes of ``_PyRuntime`` that hold all of the offsets; the structure itself is far larger."""

_HEAD = Struct("<8sQQ")
_VERSION_SHIFT = 16
_FARTHEST = 1 << 20
"""No structure is larger; an offset beyond is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonLayout:
    """Offsets in bytes from the start of each structure, of a 64-bit little-endian process."""

    version: tuple[int, int]
    """Major and minor."""

    interpreters_head: int
    """``_PyRuntimeState.interpreters.head``."""
    interpreter_next: int
    threads_head: int
    """``PyInterpreterState.threads.head``."""

    thread_next: int
    thread_interpreter: int
    thread_native_id: int
    thread_ident: int
    """``thread_id``: ``pthread_self()``, the key of ``threading._active``."""
    thread_frame: int
    """``PyThreadState.current_frame``, or of ``cframe``, which leads to it."""

    c_frame_current: int | None
    """``_PyCFrame.current_frame``; None from 3.13 on, which has no such structure."""
    c_frame_previous: int

    frame_code: int
    """``f_code``, ``f_executable``; its lowest bits may be tags."""
    frame_previous: int
    frame_instruction: int
    """``prev_instr``, ``instr_ptr``."""
    frame_owner: int
    frame_locals: int
    """``localsplus``: local variables, then the stack."""
    frame_is_entry: int | None
    """3.11: whether the frame began a run of the loop; later a shim with an owner of its own
    stands before it."""

    code_file: int
    code_name: int
    """``co_qualname``."""
    code_lines: int
    """``co_linetable``."""
    code_first_line: int
    code_instructions: int
    """``co_code_adaptive``, the first instruction."""

    object_type: int
    type_name: int
    """``PyTypeObject.tp_name``."""
    size: int
    """``PyVarObject.ob_size``, of code in instructions, of bytes in bytes."""
    text_length: int
    text_state: int
    text_ascii: int
    """Size of ``PyASCIIObject``: where the characters of a text of ASCII are."""
    text_compact: int
    """Size of ``PyCompactUnicodeObject``: where those of others are."""
    bytes_start: int

    runtime_gil: int | None
    """The lock's state in ``_PyRuntimeState``; None from 3.12 on."""
    interpreter_gil: int | None
    """``PyInterpreterState.ceval.gil``, a pointer to it; None before 3.12."""
    gil_holder: int
    """``_gil_runtime_state.last_holder``, a thread state."""
    gil_locked: int

    interpreter_modules: int
    """``sys.modules``."""
    dict_keys: int
    dict_values: int
    long_digits: int

    def native(self, runtime: int) -> bytes:
        """Return the layout as the reader in C takes it.

        Args:
            runtime: the address of ``_PyRuntime`` (Avma).
        """
        offsets = (getattr(self, name) for name in _NATIVE_FIELDS.split())
        words = (_NOWHERE if offset is None else offset for offset in offsets)
        return _NATIVE.pack(runtime, *words)

    @property
    def code_tags(self) -> int:
        """Lowest bits of a frame's reference to code that are not of the address."""
        return _TAGS if self.has_base_frame else 0

    @property
    def has_base_frame(self) -> bool:
        """Whether a shim that is no run's lies below all frames of a thread (3.14)."""
        return self.version >= (3, 14)


_TAGS = 3
"""``_PyStackRef`` of 3.14."""
_NOWHERE = (1 << 64) - 1
_NATIVE_FIELDS = (
    "interpreters_head interpreter_next threads_head thread_next thread_interpreter "
    "thread_native_id thread_ident thread_frame c_frame_current c_frame_previous frame_code "
    "frame_previous frame_instruction frame_owner frame_is_entry code_tags code_file code_name "
    "code_lines code_first_line object_type type_name size text_length text_state text_ascii "
    "text_compact bytes_start runtime_gil interpreter_gil gil_holder gil_locked"
)
"""The fields of ``machtrace_python_layout`` in ``native/ptrace/python.h``, behind the first."""
_NATIVE = Struct(f"<{len(_NATIVE_FIELDS.split()) + 1}Q")

_OBJECTS_3_12 = {
    "object_type": 8,
    "type_name": 24,
    "size": 16,
    "text_length": 16,
    "text_state": 32,
    "text_ascii": 40,
    "text_compact": 56,
    "bytes_start": 32,
    "gil_holder": 8,
    "gil_locked": 16,
    "dict_keys": 32,
    "dict_values": 40,
    "long_digits": 24,
}

_LAYOUT_3_11 = PythonLayout(
    version=(3, 11),
    interpreters_head=40,
    interpreter_next=0,
    threads_head=16,
    thread_next=8,
    thread_interpreter=16,
    thread_native_id=160,
    thread_ident=152,
    thread_frame=56,
    c_frame_current=8,
    c_frame_previous=16,
    frame_code=32,
    frame_previous=48,
    frame_instruction=56,
    frame_owner=69,
    frame_locals=72,
    frame_is_entry=68,
    code_file=112,
    code_name=128,
    code_lines=136,
    code_first_line=72,
    code_instructions=184,
    runtime_gil=360,
    interpreter_gil=None,
    interpreter_modules=888,
    **(_OBJECTS_3_12 | {"text_ascii": 48, "text_compact": 72}),
)

_LAYOUT_3_12 = PythonLayout(
    version=(3, 12),
    interpreters_head=40,
    interpreter_next=0,
    threads_head=72,
    thread_next=8,
    thread_interpreter=16,
    thread_native_id=144,
    thread_ident=136,
    thread_frame=56,
    c_frame_current=0,
    c_frame_previous=8,
    frame_code=0,
    frame_previous=8,
    frame_instruction=56,
    frame_owner=70,
    frame_locals=72,
    frame_is_entry=None,
    code_file=112,
    code_name=128,
    code_lines=136,
    code_first_line=68,
    code_instructions=192,
    runtime_gil=None,
    interpreter_gil=384,
    interpreter_modules=944,
    **_OBJECTS_3_12,
)

_BY_VERSION = {layout.version: layout for layout in (_LAYOUT_3_11, _LAYOUT_3_12)}

# The groups of _Py_DebugOffsets, each a row of 64-bit numbers, in their order.
_GROUPS_3_13 = (
    ("runtime", "size finalizing interpreters_head"),
    (
        "interpreter",
        (
            "size id next threads_head gc imports_modules sysdict builtins ceval_gil "
            "gil_runtime_state gil_runtime_state_enabled gil_runtime_state_locked "
            "gil_runtime_state_holder"
        ),
    ),
    (
        "thread",
        "size prev next interp current_frame thread_id native_thread_id datastack_chunk status",
    ),
    ("frame", "size previous executable instr_ptr localsplus owner"),
    (
        "code",
        (
            "size filename name qualname linetable firstlineno argcount localsplusnames "
            "localspluskinds co_code_adaptive"
        ),
    ),
    ("object", "size ob_type"),
    ("type", "size tp_name tp_repr tp_flags"),
    ("tuple", "size ob_item ob_size"),
    ("list", "size ob_item ob_size"),
    ("dict", "size ma_keys ma_values"),
    ("float", "size ob_fval"),
    ("long", "size lv_tag ob_digit"),
    ("bytes", "size ob_size ob_sval"),
    ("text", "size state length asciiobject_size"),
)
_GROUPS_3_14 = (
    _GROUPS_3_13[0],
    (
        "interpreter",
        (
            "size id next threads_head threads_main gc imports_modules sysdict builtins ceval_gil "
            "gil_runtime_state gil_runtime_state_enabled gil_runtime_state_locked "
            "gil_runtime_state_holder code_object_generation tlbc_generation"
        ),
    ),
    _GROUPS_3_13[2],
    ("frame", "size previous executable instr_ptr localsplus owner stackpointer tlbc_index"),
    (
        "code",
        (
            "size filename name qualname linetable firstlineno argcount localsplusnames "
            "localspluskinds co_code_adaptive co_tlbc"
        ),
    ),
    *_GROUPS_3_13[5:9],
    ("set", "size used table mask"),
    *_GROUPS_3_13[9:],
)
GROUPS_OF_OFFSETS = {(3, 13): _GROUPS_3_13, (3, 14): _GROUPS_3_14}

SUPPORTED = "3.11 to 3.14"


def layout_of(head: bytes, version: int | None, source: str) -> PythonLayout:
    """Return the layout of an interpreter.

    Args:
        head: the first :data:`HEAD_SIZE` bytes of its ``_PyRuntime``.
        version: its ``Py_Version`` (``PY_VERSION_HEX``), where that could be read.
        source: what to call it in errors.

    Raises:
        FormatError: it is of a version whose layout is not known, or free-threaded, or what it
            states cannot be valid.
    """
    if not head.startswith(COOKIE):
        found = None if version is None else _BY_VERSION.get(_major_minor(version))
        if found is None:
            raise unsupported(source, version)
        return found
    _, version, is_free_threaded = _HEAD.unpack_from(head)
    groups = GROUPS_OF_OFFSETS.get(_major_minor(version))
    if groups is None:
        raise unsupported(source, version)
    if is_free_threaded:
        raise FormatError(
            "free-threaded CPython is not supported",
            source=source,
            offset=0,
            remedy=f"{WITHOUT_PYTHON}, or run the program with the usual build",
        )
    return _described(_rows(head, groups), _major_minor(version), source)


def _described(
    rows: dict[str, dict[str, int]], version: tuple[int, int], source: str
) -> PythonLayout:
    thread, frame, code, text = rows["thread"], rows["frame"], rows["code"], rows["text"]
    interpreter = rows["interpreter"]
    gil = interpreter["gil_runtime_state"]
    if any(offset > _FARTHEST for row in rows.values() for offset in row.values()):
        raise FormatError("offsets exceed every structure", source=source, offset=_HEAD.size)
    return PythonLayout(
        version=version,
        interpreters_head=rows["runtime"]["interpreters_head"],
        interpreter_next=interpreter["next"],
        threads_head=interpreter["threads_head"],
        thread_next=thread["next"],
        thread_interpreter=thread["interp"],
        thread_native_id=thread["native_thread_id"],
        thread_ident=thread["thread_id"],
        thread_frame=thread["current_frame"],
        c_frame_current=None,
        c_frame_previous=0,
        frame_code=frame["executable"],
        frame_previous=frame["previous"],
        frame_instruction=frame["instr_ptr"],
        frame_owner=frame["owner"],
        frame_locals=frame["localsplus"],
        frame_is_entry=None,
        code_file=code["filename"],
        code_name=code["qualname"],
        code_lines=code["linetable"],
        code_first_line=code["firstlineno"],
        code_instructions=code["co_code_adaptive"],
        object_type=rows["object"]["ob_type"],
        type_name=rows["type"]["tp_name"],
        size=rows["bytes"]["ob_size"],
        text_length=text["length"],
        text_state=text["state"],
        text_ascii=text["asciiobject_size"],
        # PyCompactUnicodeObject adds the length and place of a text's UTF-8.
        text_compact=text["asciiobject_size"] + 16,
        bytes_start=rows["bytes"]["ob_sval"],
        runtime_gil=None,
        interpreter_gil=interpreter["ceval_gil"],
        gil_holder=max(0, interpreter["gil_runtime_state_holder"] - gil),
        gil_locked=max(0, interpreter["gil_runtime_state_locked"] - gil),
        interpreter_modules=interpreter["imports_modules"],
        dict_keys=rows["dict"]["ma_keys"],
        dict_values=rows["dict"]["ma_values"],
        long_digits=rows["long"]["ob_digit"],
    )


def _rows(head: bytes, groups: tuple[tuple[str, str], ...]) -> dict[str, dict[str, int]]:
    rows: dict[str, dict[str, int]] = {}
    at = _HEAD.size
    for name, fields in groups:
        names = fields.split()
        row = Struct(f"<{len(names)}Q")
        rows[name] = dict(zip(names, row.unpack_from(head, at), strict=True))
        at += row.size
    return rows


def _major_minor(version: int) -> tuple[int, int]:
    return version >> _VERSION_SHIFT + 8 & 0xFF, version >> _VERSION_SHIFT & 0xFF


_NAMED = re.compile(r"python([23]\.\d+)")


def unsupported(source: str, version: int | None) -> FormatError:
    """Return the error for a CPython whose structures are not known.

    Args:
        source: the path of its image, which names the version if ``version`` is None.
        version: ``Py_Version``, which exists since 3.11.
    """
    named = _NAMED.search(source.rpartition("/")[2])
    if version is not None:
        number = "{}.{}".format(*_major_minor(version))
    else:
        number = named[1] if named else "of unknown version"
    return FormatError(
        f"unsupported CPython {number}; supported are {SUPPORTED}",
        source=source,
        offset=0,
        remedy=WITHOUT_PYTHON,
    )
