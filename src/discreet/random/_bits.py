"""Many random bits in one draw, by the fastest way there is."""

import jax

from discreet.random._chacha import WORDS_PER_BLOCK, fast_keystream
from discreet.random._keys import check_key
from discreet.random._prng import BITS, nonce


def fast_bits(key: jax.Array, num_words: int) -> tuple[jax.Array, jax.Array]:
    """The words of `jax.random.bits(key, (num_words,))`, and whether they are what they should be.

    Long draws on a CPU come from OpenSSL where it is installed. If it fails without a word (never seen), the second
    result is False, and nothing that depends on the first may be used.

    Args:
        key: one key; use it for nothing else.
        num_words: how many; static.

    Returns:
        uint32[num_words], and a Boolean scalar.

    Raises:
        TypeError: not a typed key.
        ValueError: an array of keys, or more words than a key can number.
    """
    words = jax.random.key_data(check_key(key, "key"))
    stream, right = fast_keystream(words, nonce(BITS, 32), -(-num_words // WORDS_PER_BLOCK))
    return stream[:num_words], right
