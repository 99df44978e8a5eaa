"""The ChaCha20 block function: RFC 8439's test vectors, and an independent implementation in every layout."""

import jax.numpy as jnp
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from discreet.random import _chacha
from discreet.random._chacha import blocks, keystream_words, quarter_round


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
    assert [int(x) for x in quarter_round(*state)] == [0xEA2A92F4, 0xCB1CF8CE, 0x4581472E, 0x5881C4BB]


@pytest.mark.parametrize(("key", "counter", "nonce", "expected"), VECTORS)
@pytest.mark.parametrize("number", [1, 3, 20, 600])
def test_the_block_vectors_in_every_layout(key, counter, nonce, expected, number):
    counters = (np.arange(number, dtype=np.uint32) + counter)[::-1].copy()
    out = blocks(jnp.asarray(words_of(key)), jnp.asarray(counters), jnp.asarray(words_of(nonce)))
    assert out.shape == (16, number)
    np.testing.assert_array_equal(out[:, -1], words_of(bytes.fromhex(expected)))


def test_the_encryption_vector_of_section_2_4_2():
    nonce = words_of(bytes.fromhex("000000000000004a00000000"))
    stream = np.asarray(blocks(jnp.asarray(words_of(KEY)), jnp.arange(1, 3, dtype=jnp.uint32), jnp.asarray(nonce)))
    text = b"Ladies and Gentl"
    cipher = bytes(a ^ b for a, b in zip(text, stream.T.astype("<u4").tobytes(), strict=False))
    assert cipher.hex() == "6e2e359a2568f98041ba0728dd0d6981"


@pytest.mark.parametrize("number", [1, 2, 8, 9, 16, 31, 512, 513, 1000])
def test_every_layout_agrees_with_openssl(number):
    generator = np.random.default_rng(number)
    key, nonce = generator.bytes(32), generator.bytes(12)
    counter = 2**32 - 5000
    counters = counter + np.arange(number, dtype=np.uint64)
    out = blocks(jnp.asarray(words_of(key)), jnp.asarray(counters.astype(np.uint32)), jnp.asarray(words_of(nonce)))
    np.testing.assert_array_equal(out, reference_blocks(key, counter, nonce, number))


@pytest.mark.parametrize("num_words", [1, 15, 16, 17, 39, 1000, 9000, 16 * 700])
def test_a_stream_reads_every_word_at_most_once(num_words, monkeypatch):
    monkeypatch.setattr(_chacha, "_CHUNK", 200)  # so that the longer streams are made in chunks
    nonce = bytes(range(12))
    words = np.asarray(keystream_words(jnp.asarray(words_of(KEY)), jnp.asarray(words_of(nonce)), num_words))
    assert words.shape == (num_words,)
    available = reference_blocks(KEY, 0, nonce, -(-num_words // 16) + 8).reshape(-1)
    assert len(np.unique(available)) == len(available)
    assert len(np.unique(words)) == num_words
    assert np.isin(words, available).all()


def test_more_words_than_counters_are_refused():
    key, nonce = jnp.zeros(8, jnp.uint32), jnp.zeros(3, jnp.uint32)
    with pytest.raises(ValueError, match="2\\*\\*36"):
        keystream_words(key, nonce, 2**36 + 1)
