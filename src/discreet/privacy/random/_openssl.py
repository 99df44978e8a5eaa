"""ChaCha20's words from OpenSSL, written where XLA wants them.

On a CPU OpenSSL makes the words five times as fast as XLA. The stream is the same to the bit (RFC
8439), so this can change how long something takes and nothing else. It is used where the packages
`cryptography` and `cffi` (the extra `fast`) are installed and pass a test vector; without them XLA
makes the words, and a warning names the extra.

XLA calls `_Producer.call` with the address of a call frame (XLA's foreign function interface,
`xla/ffi/api/c_api.h`; the declarations below are those of version 0.3, which XLA checks when the
target is registered). Nothing is copied: the words are written where XLA wants them. Nothing here
calls JAX, so no core has to be free for it, and what is compiled holds a name and no address, so
that compilation caches keep it.

Long streams are made by two threads. None writes once the call has returned, and if one fails, the
last block is wrong.

Python may fail at any moment, even before the first line of a function: the main thread handles
Ctrl-C there. cffi then calls `failed`, which makes the words after all if it was Ctrl-C (and sends
that once more, later), and reports an error to XLA if not: the step fails. What still could go
wrong, `normal` notices: it computes the last block by itself, and makes everything NaN if the words
do not end with it.
"""

import _thread
import atexit
import sys
import threading
import time
import warnings
from collections import deque
from contextlib import suppress
from functools import cache
from math import inf
from typing import Any

import jax

TARGET = "discreet_chacha20_keystream"
STATE_WORDS = 12
_BLOCK_BYTES = 64
_ZEROS = 2**18
_FOR_TWO = 2**20  # bytes from which two threads write them: to start one takes as long as 2**18
_INTERNAL = 13  # XLA_FFI_Error_Code_INTERNAL
_METADATA = 1  # XLA_FFI_Extension_Metadata
_LATER, _PAUSE, _LONGEST_GAP = 0.005, 0.15, 2.0  # seconds
_first_call = threading.Lock()
# What XLA may call as long as the process lives: the closure, and the producer that it belongs to.
_alive: list[Any] = []
_DECLARATIONS = """
typedef struct Extension { size_t struct_size; int type; struct Extension* next; } Extension;
typedef struct { size_t struct_size; Extension* extension_start; int major; int minor; } Version;
typedef struct { size_t struct_size; Version version; uint32_t traits; } Metadata;
typedef struct { Extension base; Metadata* metadata; } MetadataExtension;
typedef struct { size_t struct_size; Extension* extension_start; const char* message; int code; } ErrorArgs;
typedef struct {
    size_t struct_size; Extension* extension_start; Version version; void* internal;
    void* (*error_create)(ErrorArgs*);
} Api;
typedef struct {
    size_t struct_size; Extension* extension_start; int dtype; void* data; int64_t rank; int64_t* dims;
} Buffer;
typedef struct {
    size_t struct_size; Extension* extension_start; int64_t size; int* types; Buffer** items;
} Buffers;
typedef struct {
    size_t struct_size; Extension* extension_start; Api* api; void* ctx; int stage; Buffers args; Buffers rets;
} CallFrame;
typedef void* (*Handler)(CallFrame*);
"""


def available() -> bool:
    """True if XLA can call OpenSSL here; registers the target on the first call."""
    with _first_call:
        return _available()


@cache
def _available() -> bool:
    try:
        return _Producer().works()
    except ModuleNotFoundError as error:
        warnings.warn(
            f"{error.name} is not installed, so XLA makes the random words of the noise: the same words, some four times as "
            "slowly as OpenSSL. pip install 'discreet[fast]' brings it.",
            UserWarning,
            stacklevel=2,
        )
        return False
    except Exception:
        # Whatever else refuses (a FIPS build of OpenSSL without ChaCha20, no memory for
        # closures, an XLA of another interface): the words are the same without it.
        return False


class _Producer:
    """The producer of the words, and its interface to XLA."""

    def __init__(self) -> None:
        import cffi
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

        self.ffi: Any = cffi.FFI()  # the types of cdata are in the declarations
        self.ffi.cdef(_DECLARATIONS)
        self.zeros = memoryview(bytes(_ZEROS))
        self.cipher = lambda state: Cipher(ChaCha20(state[:32], state[32:]), mode=None).encryptor()
        self.rearmed = threading.Lock()
        self.last = -inf
        self.ending = False
        self.gaps: deque[float] = deque(maxlen=8)  # seconds between draws

    def works(self) -> bool:
        words = bytearray(2 * _BLOCK_BYTES)
        self.write(bytes(48), memoryview(words))
        # RFC 8439, appendix A.1, vectors 1 and 2: how they begin.
        if sys.byteorder != "little":
            return False
        if words[:4].hex() != "76b8e0ad" or words[64:68].hex() != "9f07e7be":
            return False
        closure = self.ffi.callback("Handler", self.call, error=self.ffi.NULL, onerror=self.failed)
        _alive.extend([self, closure])
        address = int(self.ffi.cast("uintptr_t", closure))
        atexit.register(self.finish)
        jax.ffi.register_ffi_target(
            TARGET, jax.ffi.pycapsule(address), platform="cpu", api_version=1
        )
        return True

    def write(self, state: bytes, out: memoryview) -> None:
        """Fill `out` with the keystream of a state: 8 words of key, the counter, 3 words of nonce."""
        stream = self.cipher(state)
        for start in range(0, len(out), _ZEROS):
            part = out[start : start + _ZEROS]
            stream.update_into(self.zeros[: len(part)], part)

    def write_by_two(self, state: bytes, out: memoryview) -> None:
        """`write` by two threads: this one makes the second half, and the first as well if the other has not begun it."""
        middle = len(out) // 2 // _BLOCK_BYTES
        at = 4 * COUNTER
        number = int.from_bytes(state[at : at + 4], "little") + middle
        later = state[:at] + number.to_bytes(4, "little") + state[at + 4 :]
        first = out[: middle * _BLOCK_BYTES]
        second = out[middle * _BLOCK_BYTES :]
        # Whoever takes `begun` writes the first half, and the other never does.
        begun = _thread.allocate_lock()
        ended = _thread.allocate_lock()
        errors: list[BaseException] = []

        def help_once() -> None:
            if begun.acquire(False):
                try:
                    self.write(state, first)
                except BaseException as error:
                    errors.append(error)
                finally:
                    ended.release()

        ended.acquire()
        out[-_BLOCK_BYTES:] = bytes(_BLOCK_BYTES)
        try:
            with suppress(RuntimeError):  # the system has no more threads
                _thread.start_new_thread(help_once, ())
            self.write(later, second)
        finally:
            alone = begun.acquire(False)
            if not alone:
                ended.acquire()
        try:
            if alone:
                self.write(state, first)
            elif errors:
                raise errors[0]
        except BaseException:
            out[-_BLOCK_BYTES:] = bytes(_BLOCK_BYTES)
            raise

    def call(self, frame: Any) -> Any:
        """The entry point for XLA: called once for the version, then for every draw."""
        if frame.extension_start:
            return self.tell_version(frame.extension_start)
        self.gaps.append(time.monotonic() - self.last)
        self.last = time.monotonic()
        if self.ending:
            return self.error(frame, "Python ends")
        state = frame.args.items[0]
        out = frame.rets.items[0]
        if frame.args.size != 1 or frame.rets.size != 1 or state.rank != 1 or out.rank != 1:
            return self.error(frame, "takes one vector and gives one")
        if state.dims[0] != STATE_WORDS or out.dims[0] % (_BLOCK_BYTES // 4):
            return self.error(frame, "takes twelve words and gives blocks of sixteen")
        view = self.ffi.buffer
        words = bytes(view(state.data, 4 * STATE_WORDS))
        room = memoryview(view(out.data, 4 * out.dims[0]))
        # Ctrl-C ends what the main thread does at any moment: it must not leave behind a thread
        # that writes.
        alone = len(room) < _FOR_TWO or threading.get_ident() == threading.main_thread().ident
        (self.write if alone else self.write_by_two)(words, room)
        self.last = time.monotonic()
        return self.ffi.NULL

    def finish(self) -> None:
        """Wait for what is in flight: a draw while the interpreter goes down would wait for its lock for ever."""
        try:
            for array in jax.live_arrays():
                if not array.is_deleted():
                    with suppress(Exception):  # that of a program that failed
                        array.block_until_ready()
        finally:
            # Programs whose results nobody holds, as after Ctrl-C, fail at their next draw.
            self.ending = True
        # Nothing says when they have: this waits twice the longest time between the last few draws.
        patience = 2 * max([_PAUSE, *(gap for gap in tuple(self.gaps) if gap < _LONGEST_GAP)])
        while time.monotonic() < self.last + patience:
            time.sleep(_LATER)

    def tell_version(self, extension: Any) -> Any:
        if extension.type == _METADATA:
            metadata = self.ffi.cast("MetadataExtension*", extension).metadata
            metadata.version.major = 0
            metadata.version.minor = 3
            metadata.traits = 0
        return self.ffi.NULL

    def error(self, frame: Any, what: str) -> Any:
        message = self.ffi.new("char[]", f"discreet: no random words were made: {what}".encode())
        args = self.ffi.new("ErrorArgs*")
        args.struct_size = self.ffi.offsetof("ErrorArgs", "code") + 4
        args.message = message
        args.code = _INTERNAL
        return frame.api.error_create(args)

    def failed(self, kind: type[BaseException], value: BaseException, trace: Any) -> Any:
        """The error handler of cffi for `call`, whose frame `trace` contains. Names no value, since they are secret."""
        del value
        frame = trace.tb_frame.f_locals["frame"]
        if not issubclass(kind, KeyboardInterrupt):
            return self.error(frame, f"{kind.__name__} in the host's producer")
        self.interrupt_later()
        return self.call(frame)

    def interrupt_later(self) -> None:
        """Send Ctrl-C again: the program gets it once it is back from XLA, as without a producer on the host."""
        if not self.rearmed.acquire(blocking=False):
            return

        def send() -> None:
            self.rearmed.release()
            _thread.interrupt_main()

        timer = threading.Timer(_LATER, send)
        timer.daemon = True
        timer.start()


COUNTER = 8  # where the counter stands in a state without its constants
