"""The ChaCha20 keystream of OpenSSL, as a custom call of XLA on CPUs: five times as fast as XLA's own code.

The stream is that of `_chacha.py` to the bit (RFC 8439), so this file can change how long something takes and nothing
else. It is used where the packages `cryptography` and `cffi` (which comes with it) are installed and pass a test
vector; without them `_chacha.py` makes the words itself.

XLA calls `_call` with the address of a call frame (XLA's foreign function interface, `xla/ffi/api/c_api.h`; the
declarations below are those of version 0.3, which XLA checks when the target is registered). Nothing is copied: the
words are written where XLA wants them. Nothing here calls JAX, so no core has to be free for it, and what is compiled
holds a name and no address, so that compilation caches keep it.

Python may fail at any moment, even before the first line of a function: the main thread handles Ctrl-C there. cffi
then calls `_failed`, which makes the words after all if it was Ctrl-C (and sends that once more, later), and reports
an error to XLA if not: the step fails. What still could go wrong, `normal` notices: it computes the last block by
itself, and makes everything NaN if the words do not end with it.
"""

import _thread
import atexit
import sys
import threading
from functools import cache
from typing import Any

import jax

TARGET = "discreet_chacha20_keystream"

_STATE_WORDS = 12
_BLOCK_BYTES = 64
_ZEROS = 2**22
_INTERNAL = 13  # XLA_FFI_Error_Code_INTERNAL
_METADATA = 1  # XLA_FFI_Extension_Metadata
_LATER = 0.005  # seconds
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
    """Whether XLA can call OpenSSL here; registers the target on the first call."""
    with _first_call:
        return _available()


@cache
def _available() -> bool:
    try:
        return _Producer().works()
    except Exception:
        # Whatever is missing or refuses (no package, a FIPS build of OpenSSL without ChaCha20, no memory for
        # closures, an XLA of another interface): the words are the same without it.
        return False


def _finish_what_is_in_flight() -> None:
    for array in jax.live_arrays():
        if not array.is_deleted():
            array.block_until_ready()


class _Producer:
    """What makes the words, and how XLA reaches it."""

    def __init__(self) -> None:
        import cffi
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

        self.ffi: Any = cffi.FFI()  # the types of cdata are in the declarations
        self.ffi.cdef(_DECLARATIONS)
        self.zeros = memoryview(bytes(_ZEROS))
        self.cipher = lambda state: Cipher(ChaCha20(state[:32], state[32:]), mode=None).encryptor()
        self.rearmed = threading.Lock()

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
        # A draw in flight while the interpreter goes down would wait for its lock for ever.
        atexit.register(_finish_what_is_in_flight)
        jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(address), platform="cpu", api_version=1)
        return True

    def write(self, state: bytes, out: memoryview) -> None:
        """Fill `out` with the keystream of a state: 8 words of key, the counter, 3 words of nonce."""
        stream = self.cipher(state)
        for start in range(0, len(out), _ZEROS):
            part = out[start : start + _ZEROS]
            stream.update_into(self.zeros[: len(part)], part)

    def call(self, frame: Any) -> Any:
        """What XLA calls: first once to ask for the version, then for every draw."""
        if frame.extension_start:
            return self.tell_version(frame.extension_start)
        state, out = frame.args.items[0], frame.rets.items[0]
        if frame.args.size != 1 or frame.rets.size != 1 or state.rank != 1 or out.rank != 1:
            return self.error(frame, "takes one vector and gives one")
        if state.dims[0] != _STATE_WORDS or out.dims[0] % (_BLOCK_BYTES // 4):
            return self.error(frame, "takes twelve words and gives blocks of sixteen")
        view = self.ffi.buffer
        self.write(bytes(view(state.data, 4 * _STATE_WORDS)), memoryview(view(out.data, 4 * out.dims[0])))
        return self.ffi.NULL

    def tell_version(self, extension: Any) -> Any:
        if extension.type == _METADATA:
            metadata = self.ffi.cast("MetadataExtension*", extension).metadata
            metadata.version.major, metadata.version.minor, metadata.traits = 0, 3, 0
        return self.ffi.NULL

    def error(self, frame: Any, what: str) -> Any:
        message = self.ffi.new("char[]", f"discreet: no random words were made: {what}".encode())
        args = self.ffi.new("ErrorArgs*")
        args.struct_size, args.message, args.code = self.ffi.offsetof("ErrorArgs", "code") + 4, message, _INTERNAL
        return frame.api.error_create(args)

    def failed(self, kind: type[BaseException], value: BaseException, trace: Any) -> Any:
        """What cffi calls when `call` raised: `trace` is how to know its frame. Names no value: they are secret."""
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
