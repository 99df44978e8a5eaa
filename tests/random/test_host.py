"""The producer on the host: the same bits, failures that fail, one core, several devices, threads, Ctrl-C."""

import os
import subprocess
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import discreet.privacy.random as dr
from discreet.privacy.random import _chacha, _openssl

pytestmark = pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="other devices make the words themselves"
)
KEY = dr.key(20261120)
WORDS = jax.random.key_data(KEY)
NONCE = jnp.array([7, 8, 9], jnp.uint32)
SIZE = 20_000  # values, long enough for the host


def fresh(function):
    """A jit of its own, which is traced and lowered again."""
    return jax.jit(lambda *args: function(*args))


@pytest.fixture
def without_host(monkeypatch):
    monkeypatch.setattr(_chacha, "available", lambda: False)


def unused(purpose: str):
    """A key that nothing else draws with: freed memory may hold the words of any other, and those would be right."""
    return jax.random.fold_in(KEY, zlib.crc32(purpose.encode()))


def compiled(function, *args) -> str:
    return str(fresh(function).lower(*args).compile().as_text())


# The same stream


@pytest.mark.parametrize("num_blocks", [_chacha.HOST_BLOCKS, 2**16 + 5])
def test_both_producers_make_the_same_words(num_blocks):
    """The longest is longer than the zeros that are encrypted at a time."""
    words, right = fresh(lambda key: _chacha.fast_keystream(key, NONCE, num_blocks))(WORDS)
    assert bool(right)
    expected = fresh(lambda key: _chacha.keystream(key, NONCE, num_blocks))(WORDS)
    np.testing.assert_array_equal(words, expected)
    assert len(np.unique(words)) > 0.999 * words.size


def test_long_draws_are_made_by_the_host_and_short_ones_by_xla():
    assert _chacha.TARGET in compiled(lambda key: dr.normal(key, (SIZE,)), KEY)
    assert _chacha.TARGET not in compiled(lambda key: dr.normal(key, (100,)), KEY)
    assert _chacha.TARGET not in compiled(lambda key: jax.random.bits(key, (SIZE,)), KEY)
    assert _chacha.TARGET not in compiled(
        jax.vmap(lambda key: dr.normal(key, (SIZE,))), jax.random.split(KEY, 2)
    )


def test_other_platforms_compute_the_words_themselves():
    exported = jax.export.export(fresh(lambda words: draw_of(words)), platforms=["cuda", "tpu"])(
        WORDS
    )
    assert _chacha.TARGET not in exported.mlir_module()
    exported = jax.export.export(
        fresh(lambda words: draw_of(words)),
        platforms=["cpu", "cuda"],
        disabled_checks=[jax.export.DisabledSafetyCheck.custom_call(_chacha.TARGET)],
    )(WORDS)
    assert _chacha.TARGET in exported.mlir_module()


def draw_of(words):
    return dr.normal(jax.random.wrap_key_data(words, impl=jax.random.key_impl(KEY)), (SIZE,))


@pytest.mark.usefixtures("without_host")
def test_without_the_library_the_draw_is_the_same():
    alone = fresh(lambda key: dr.normal(key, (SIZE,)))
    assert _chacha.TARGET not in alone.lower(KEY).compile().as_text()
    values = alone(KEY)
    np.testing.assert_array_equal(values, dr.normal(KEY, (SIZE,)))


def test_a_missing_or_refusing_library_is_no_error(monkeypatch):
    for name in ("cffi", "cryptography.hazmat.primitives.ciphers"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, None)
            with pytest.warns(
                UserWarning, match=rf"{name}.* is not installed.*pip install 'discreet\[fast\]'"
            ):
                assert _openssl._available.__wrapped__() is False
    # a wrong stream
    monkeypatch.setattr(_openssl._Producer, "write", lambda self, state, out: None)
    assert _openssl._available.__wrapped__() is False


STATE = np.concatenate([WORDS, np.array([5], np.uint32), NONCE]).tobytes()


def written(producer, how, num_blocks=2**14 + 3):
    """The bytes that one of the ways of a producer writes over others."""
    out = bytearray(b"\xff" * (64 * num_blocks))
    getattr(producer, how)(STATE, memoryview(out))
    return bytes(out)


class Pair:
    """A producer's `write` of which one thread waits for the other: for its end, or until it has begun."""

    def __init__(self, monkeypatch, late, error=None):
        self.calls, self.caller, self.honest = [], threading.get_ident(), _openssl._Producer.write
        self.late, self.error, self.begun, self.done = (
            late,
            error,
            threading.Event(),
            threading.Event(),
        )
        monkeypatch.setattr(_openssl._Producer, "write", lambda *args: self.write(*args))

    def write(self, producer, state, out):
        who = "caller" if threading.get_ident() == self.caller else "helper"
        self.calls.append(who)
        if who == "helper":
            self.begun.set()
            time.sleep(0.1 * (self.late == "helper"))
        else:
            assert (self.done if self.late == "caller" else self.begun).wait(20)
        if self.error == who:
            raise MemoryError
        self.honest(producer, state, out)
        if who == "helper":
            self.done.set()


@pytest.mark.parametrize("late", ["helper", "caller"])
def test_two_threads_write_what_one_does(monkeypatch, late):
    producer = _openssl._Producer()
    expected = written(producer, "write")
    pair = Pair(monkeypatch, late)
    assert written(producer, "write_by_two") == expected
    assert sorted(pair.calls) == ["caller", "helper"]


@pytest.mark.parametrize("seconds", [None, 0.1])
def test_one_thread_writes_both_halves_where_the_other_does_not_come_or_too_late(
    monkeypatch, seconds
):
    """What comes too late writes nothing: the memory is another's."""
    producer, expected, timers = _openssl._Producer(), written(_openssl._Producer(), "write"), []

    def start(function, _):
        if seconds is None:
            raise RuntimeError("can't start new thread")
        timers.append(threading.Timer(seconds, function))
        timers[0].start()

    monkeypatch.setattr(_openssl._thread, "start_new_thread", start)
    out = bytearray(len(expected))
    producer.write_by_two(STATE, memoryview(out))
    assert out == expected
    out[:] = bytes(len(out))
    for timer in timers:
        timer.join()
    assert not any(out)


@pytest.mark.parametrize("whose", ["helper", "caller"])
def test_a_half_that_fails_fails_the_stream_and_spoils_its_last_block(monkeypatch, whose):
    """The other half is written before the error comes, not after."""
    producer, out = _openssl._Producer(), bytearray(b"\xff" * 2**20)
    expected = written(producer, "write", 2**14)
    Pair(monkeypatch, "helper", error=whose)
    with pytest.raises(MemoryError):
        producer.write_by_two(STATE, memoryview(out))
    other = slice(2**19) if whose == "caller" else slice(2**19, -64)
    assert out[other] == expected[other]
    assert not any(out[-64:])


def test_long_streams_take_two_threads_but_the_main_thread_never_does(monkeypatch):
    """Ctrl-C comes to the main thread alone, which must not leave a thread behind that writes into memory of others."""
    assert _chacha.available()  # this asks `write` once
    lengths, threads, honest = [], set(), _openssl._Producer.write

    def watched(self, state, out):
        lengths.append(len(out))
        threads.add(threading.get_ident())
        time.sleep(0.1)  # so that the other thread comes
        honest(self, state, out)

    monkeypatch.setattr(_openssl._Producer, "write", watched)
    draw = fresh(lambda key: _chacha.fast_keystream(key, NONCE, 2**14)[0])
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: draw(WORDS).block_until_ready()).result()
    assert lengths == [2**19, 2**19]
    assert len(threads) == 2
    producer = _openssl._Producer()
    state, out = (
        SimpleNamespace(rank=1, dims=[n], data=producer.ffi.new("uint32_t[]", n))
        for n in (12, 2**18)
    )
    args, rets = (SimpleNamespace(size=1, items=[x]) for x in (state, out))
    producer.call(SimpleNamespace(extension_start=None, args=args, rets=rets))
    assert lengths[2:] == [2**20]


# Keys are arguments: nothing is computed too early, merged or reused


def test_draws_of_different_keys_in_one_program_differ_and_of_one_key_agree():
    a, b, c = fresh(
        lambda k, m: (dr.normal(k, (SIZE,)), dr.normal(m, (SIZE,)), dr.normal(k, (SIZE,)))
    )(KEY, dr.key(1))
    assert (np.asarray(a) != np.asarray(b)).mean() > 0.999
    np.testing.assert_array_equal(a, c)


def test_a_key_in_the_program_gives_the_draw_of_the_key():
    np.testing.assert_array_equal(fresh(lambda: dr.normal(KEY, (SIZE,)))(), dr.normal(KEY, (SIZE,)))


def test_every_iteration_of_a_loop_draws_anew():
    def body(i, rows):
        return rows.at[i].set(dr.normal(jax.random.fold_in(KEY, i), (SIZE,)))

    rows = np.asarray(fresh(lambda: lax.fori_loop(0, 4, body, jnp.zeros((4, SIZE))))())
    assert len(np.unique(rows)) > 0.99 * rows.size
    for i in range(4):
        np.testing.assert_allclose(
            rows[i], dr.normal(jax.random.fold_in(KEY, i), (SIZE,)), rtol=1e-6
        )
    _, scanned = fresh(
        lambda: lax.scan(
            lambda c, i: (c, dr.normal(jax.random.fold_in(KEY, i), (SIZE,))), 0, jnp.arange(4)
        )
    )()
    np.testing.assert_allclose(scanned, rows, rtol=1e-6)


def test_batches_and_programs_without_jit_agree():
    keys = jax.random.split(KEY, 2)
    loop = np.stack([dr.normal(key, (SIZE,)) for key in keys])
    np.testing.assert_allclose(
        fresh(jax.vmap(lambda key: dr.normal(key, (SIZE,))))(keys), loop, rtol=1e-6
    )
    with jax.disable_jit():
        np.testing.assert_allclose(dr.normal(keys[0], (SIZE,)), loop[0], rtol=1e-5, atol=1e-6)


def test_threads_get_what_they_asked_for():
    keys = list(jax.random.split(KEY, 6))
    draw = fresh(lambda key: dr.normal(key, (SIZE,)))
    alone = [np.asarray(draw(key)) for key in keys]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda key: np.asarray(draw(key)), keys * 5))
    for i, values in enumerate(together):
        np.testing.assert_array_equal(values, alone[i % len(keys)])


# Failures


def fail(self, state, out):
    raise MemoryError(f"secret {state!r}")


def test_a_producer_that_raises_fails_the_step_and_tells_no_secret(monkeypatch, capfd):
    step = fresh(lambda key, x: x + dr.normal(key, (SIZE,)))
    step(KEY, jnp.zeros(SIZE)).block_until_ready()
    monkeypatch.setattr(_openssl._Producer, "write", fail)
    with pytest.raises(Exception, match="no random words were made: MemoryError") as caught:
        step(KEY, jnp.zeros(SIZE)).block_until_ready()
    said = str(caught.value) + "".join(capfd.readouterr())
    assert "secret" not in said
    monkeypatch.undo()
    assert np.isfinite(step(KEY, jnp.zeros(SIZE))).all()


def test_a_producer_that_raises_fails_a_loop_in_its_middle(monkeypatch):
    calls = []
    honest = _openssl._Producer.write

    def third_time_fails(self, state, out):
        calls.append(1)
        if len(calls) == 3:
            raise OSError
        honest(self, state, out)

    monkeypatch.setattr(_openssl._Producer, "write", third_time_fails)
    run = fresh(
        lambda: lax.fori_loop(
            0, 5, lambda i, x: x + dr.normal(jax.random.fold_in(KEY, i), (SIZE,)), jnp.zeros(SIZE)
        )
    )
    with pytest.raises(Exception, match="no random words were made: OSError"):
        run().block_until_ready()


def nothing(self, state, out):
    del self, state, out


def half(self, state, out, write=_openssl._Producer.write):
    write(self, state, out[: len(out) // 2])


def of_another_key(self, state, out, write=_openssl._Producer.write):
    write(self, bytes(32) + state[32:], out)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_words_that_were_not_made_never_become_values(monkeypatch, dtype):
    """The error was lost: then no value may be used, not even an old one."""
    with jax.enable_x64(dtype == "float64"):
        draw = fresh(lambda key: dr.normal(key, (SIZE,), dtype))
        draw(KEY).block_until_ready()
        for write in (nothing, half, of_another_key):
            monkeypatch.setattr(_openssl._Producer, "write", write)
            assert np.isnan(draw(unused(f"{write.__name__} {dtype}"))).all()


# Other processes: one core, two devices, Ctrl-C


def run(program: str, **environment: str) -> str:
    """Run a program and return what it printed; it has two minutes, so that a deadlock fails."""
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + program],
        env={**os.environ, "JAX_PLATFORMS": "cpu", **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


PREAMBLE = """
import os
import jax, jax.numpy as jnp, numpy as np
from jax import lax
import discreet.privacy.random as dr
from discreet.privacy.random import _chacha, _openssl
KEY, SIZE = dr.key(20261120), 20_000
def body(i, x):
    return x + dr.normal(jax.random.fold_in(KEY, i), (SIZE,))
loop = jax.jit(lambda n: lax.fori_loop(0, n, body, jnp.zeros(SIZE)))
"""


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="one core is chosen by Linux's affinity"
)
@pytest.mark.parametrize("asynchronous", ["true", "false"])
def test_one_core_is_enough(asynchronous):
    program = """
values = [loop(20) for _ in range(5)]
assert all(bool((v == values[0]).all()) for v in values)
print(len(os.sched_getaffinity(0)), bool(np.isfinite(values[0]).all()), _chacha.available())
"""
    pinned = "import os\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    done = subprocess.run(
        [sys.executable, "-c", pinned + PREAMBLE + program],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "JAX_CPU_ENABLE_ASYNC_DISPATCH": asynchronous},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", "True", "True"]


def test_a_program_that_does_not_wait_for_its_noise_ends():
    """XLA's thread would wait for Python's lock while Python waits for XLA."""
    run("""
draw = jax.jit(lambda key: dr.normal(key, (3_000_000,)))
value = draw(jax.random.key(0, impl=jax.random.key_impl(KEY)))
""")


def test_several_devices_draw_the_same():
    program = """
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
first, second = jax.devices()
draw = lambda key: dr.normal(key, (SIZE,))
one = np.asarray(jax.jit(draw)(KEY))
two = jax.jit(draw)(jax.device_put(KEY, second))
assert two.devices() == {second}
np.testing.assert_array_equal(one, two)
mesh = Mesh(np.array([first, second]), "d")
keys = jax.random.split(KEY, 2)
loop = np.stack([jax.jit(draw)(key) for key in keys])
mapped = jax.shard_map(lambda keys: draw(keys[0])[None], mesh=mesh, in_specs=P("d"), out_specs=P("d"))
np.testing.assert_allclose(jax.jit(mapped)(keys), loop, rtol=1e-6)
assert _chacha.TARGET in jax.jit(mapped).lower(keys).as_text()
split = jax.jit(lambda key, x: x + draw(key), out_shardings=NamedSharding(mesh, P("d")))
x = jax.device_put(jnp.zeros(SIZE), NamedSharding(mesh, P("d")))
np.testing.assert_allclose(split(KEY, x), one, rtol=1e-6)
np.testing.assert_allclose(jax.pmap(draw)(keys), loop, rtol=1e-6)
print("same")
"""
    assert run(program, XLA_FLAGS="--xla_force_host_platform_device_count=2").split() == ["same"]


def test_ctrl_c_neither_spoils_the_words_nor_is_lost():
    """It comes while the producer runs; the words are made all the same, and Python gets it afterwards."""
    program = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)
expected = np.asarray(loop(6))
honest, calls = _openssl._Producer.write, []
def interrupted(self, state, out):
    calls.append(1)
    if len(calls) == 2:
        raise KeyboardInterrupt
    honest(self, state, out)
_openssl._Producer.write = interrupted
values = None
try:
    values = np.asarray(loop(6))
    time.sleep(5)
    print("lost")
except KeyboardInterrupt:
    print("received", values is None or bool((values == expected).all()), len(calls))
"""
    out = run(program, JAX_CPU_ENABLE_ASYNC_DISPATCH="false").split()
    assert out[:2] == ["received", "True"]


def test_python_ends_although_a_result_that_nobody_holds_is_still_computed():
    """As after Ctrl-C while one waits for it. It was a deadlock: a draw waited for Python's lock, and Python for the program."""
    program = """
import time
loop(3).block_until_ready()
producer = _openssl._alive[0]
before = producer.last
loop(10**6)
while producer.last == before:
    time.sleep(0.01)
print("drawing")
"""
    assert run(program).split() == ["drawing"]


def test_a_real_ctrl_c_in_a_long_loop_is_received_and_spoils_nothing():
    program = """
import signal, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)
expected = np.asarray(loop(3000))
values = None
threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    values = np.asarray(loop(3000))
    time.sleep(5)
    print("lost")
except KeyboardInterrupt:
    again = np.asarray(loop(3000))
    print("received", bool((again == expected).all()), values is None or bool((values == expected).all()))
"""
    assert run(program).split() == ["received", "True", "True"]


# Bits


@pytest.mark.parametrize("num_words", [0, 5, 16 * _chacha.HOST_BLOCKS + 3])
def test_fast_bits_are_those_of_jax(num_words):
    words, right = dr.fast_bits(KEY, num_words)
    assert bool(right)
    np.testing.assert_array_equal(words, jax.random.bits(KEY, (num_words,)))


def test_fast_bits_that_were_not_made_are_known(monkeypatch):
    draw = fresh(lambda key: dr.fast_bits(key, SIZE))
    draw(KEY)[0].block_until_ready()
    monkeypatch.setattr(_openssl._Producer, "write", nothing)
    assert not bool(draw(unused("bits"))[1])
