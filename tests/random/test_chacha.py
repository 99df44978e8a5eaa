"""The ChaCha20 block function: RFC 8439's test vectors, and an independent implementation in every layout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from discreet.privacy.random import _chacha
from discreet.privacy.random._chacha import blocks, fast_keystream, keystream, quarter_round


def words_of(data: bytes) -> np.ndarray:
    return np.frombuffer(data, "<u4").astype(np.uint32)


def reference_blocks(key: bytes, counter: int, nonce: bytes, number: int) -> np.ndarray:
    """OpenSSL's blocks of consecutive counters, one a column."""
    start = counter.to_bytes(4, "little") + nonce
    stream = Cipher(ChaCha20(key, start), mode=None).encryptor().update(bytes(64 * number))
    return words_of(stream).reshape(number, 16).T


KEY = bytes(range(32))

# Section 2.3.2, then the five vectors of appendix A.1: key, counter, nonce, block.
VECTORS = [
    (
        KEY,
        1,
        bytes.fromhex("000000090000004a00000000"),
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e",
    ),
    (
        bytes(32),
        0,
        bytes(12),
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    ),
    (
        bytes(32),
        1,
        bytes(12),
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
    ),
    (
        bytes(31) + b"\x01",
        1,
        bytes(12),
        "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
        "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0",
    ),
    (
        b"\x00\xff" + bytes(30),
        2,
        bytes(12),
        "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
        "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096",
    ),
    (
        bytes(32),
        0,
        bytes(11) + b"\x02",
        "c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7"
        "8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d",
    ),
]


def test_the_quarter_round_of_section_2_1_1():
    state = [jnp.uint32(x) for x in (0x11111111, 0x01020304, 0x9B8D6F43, 0x01234567)]
    assert [int(x) for x in quarter_round(*state)] == [
        0xEA2A92F4,
        0xCB1CF8CE,
        0x4581472E,
        0x5881C4BB,
    ]


def states_of(key: bytes, counters: np.ndarray, nonce: bytes) -> jnp.ndarray:
    rows = [
        np.concatenate([words_of(key), [np.uint32(counter)], words_of(nonce)])
        for counter in counters
    ]
    return jnp.asarray(np.array(rows), jnp.uint32)


@pytest.mark.parametrize("number", [6, 20, 600])
def test_the_block_vectors_in_every_layout_of_many(number):
    """The blocks that XLA computes one or two at a time are compared with OpenSSL below."""
    states = jnp.concatenate(
        [states_of(key, np.array([counter]), nonce) for key, counter, nonce, _ in VECTORS]
    )
    out = blocks(jnp.resize(states, (number, 12)))
    expected = np.stack([words_of(bytes.fromhex(block)) for *_, block in VECTORS])
    np.testing.assert_array_equal(out, np.resize(expected, (number, 16)))


def test_the_block_vectors_as_a_stream():
    for key, counter, nonce, expected in VECTORS:
        out = keystream(jnp.asarray(words_of(key)), jnp.asarray(words_of(nonce)), 1, counter)
        np.testing.assert_array_equal(out, words_of(bytes.fromhex(expected)))


def test_the_encryption_vector_of_section_2_4_2():
    nonce = words_of(bytes.fromhex("000000000000004a00000000"))
    stream = np.asarray(keystream(jnp.asarray(words_of(KEY)), jnp.asarray(nonce), 2, 1))
    text = b"Ladies and Gentl"
    cipher = bytes(a ^ b for a, b in zip(text, stream.astype("<u4").tobytes(), strict=False))
    assert cipher.hex() == "6e2e359a2568f98041ba0728dd0d6981"


@pytest.mark.parametrize("number", [1, 2, 3, 8, 9, 31, 512, 513])
def test_every_layout_agrees_with_openssl(number):
    generator = np.random.default_rng(number)
    key, nonce = generator.bytes(32), generator.bytes(12)
    counter = 2**32 - 5000
    out = keystream(
        jnp.asarray(words_of(key)), jnp.asarray(words_of(nonce)), number, jnp.uint32(counter)
    )
    np.testing.assert_array_equal(
        out.reshape(number, 16).T, reference_blocks(key, counter, nonce, number)
    )


@pytest.mark.parametrize("number", [201, 1000])
def test_a_stream_in_chunks_is_the_same(number, monkeypatch):
    monkeypatch.setattr(_chacha, "_CHUNK", 200)
    nonce = bytes(range(12))
    words = _chacha._by_xla(states_of(KEY, np.zeros(1), nonce)[0], num_blocks=number, host=False)
    np.testing.assert_array_equal(
        words.reshape(number, 16).T, reference_blocks(KEY, 0, nonce, number)
    )


@pytest.mark.parametrize("number", [0, 1, 40])
def test_batches_of_keys_are_computed_together_and_agree_with_openssl(number):
    keys = [bytes([i]) * 32 for i in range(6)]
    nonce = bytes(range(12))
    words = np.array([words_of(key) for key in keys]).reshape(2, 3, 8)

    def stream(key):
        return keystream(key, jnp.asarray(words_of(nonce)), number)

    out = jax.jit(jax.vmap(jax.vmap(stream)))(words)
    expected = [reference_blocks(key, 0, nonce, number).T.reshape(-1) for key in keys]
    np.testing.assert_array_equal(out.reshape(6, -1), np.array(expected).reshape(6, -1))
    equations = jax.make_jaxpr(jax.vmap(stream))(words[0]).jaxpr.eqns
    assert [
        e.outvars[0].aval.shape for e in equations if e.primitive.name == "chacha20_keystream"
    ] == [(3, 16 * number)]


def test_integers_have_no_derivative_but_do_not_stand_in_its_way():
    nonce = jnp.zeros(3, jnp.uint32)

    def loss(x, key):
        return x * (keystream(key, nonce, 1) >> 8).astype(jnp.float32).sum()

    gradient = jax.jit(jax.grad(loss))(2.0, jnp.arange(8, dtype=jnp.uint32))
    assert float(gradient) > 0
    _, tangent = jax.jvp(
        loss, (2.0, jnp.zeros(8, jnp.uint32)), (1.0, np.zeros(8, jax.dtypes.float0))
    )
    assert float(tangent) > 0


def test_more_words_than_counters_are_refused():
    key, nonce = jnp.zeros(8, jnp.uint32), jnp.zeros(3, jnp.uint32)
    for stream in (keystream, fast_keystream):
        with pytest.raises(ValueError, match="2\\*\\*36"):
            stream(key, nonce, 2**32 + 1)
