"""Secure randomness: ChaCha20 keys for JAX, discrete Gaussian and Laplace noise, and a Gaussian sampler with exact tails."""

from discreet.random._claims import INIT as INIT
from discreet.random._claims import check_unused as check_unused
from discreet.random._claims import claim as claim
from discreet.random._claims import is_used as is_used
from discreet.random._discrete import INNER_VARIANCE as INNER_VARIANCE
from discreet.random._discrete import LAPLACE_UNIT as LAPLACE_UNIT
from discreet.random._discrete import MOST_FACTOR as MOST_FACTOR
from discreet.random._discrete import MOST_LAPLACE as MOST_LAPLACE
from discreet.random._discrete import SLACK_PER_VALUE as SLACK_PER_VALUE
from discreet.random._discrete import WORD as WORD
from discreet.random._discrete import discrete_gaussian as discrete_gaussian
from discreet.random._discrete import discrete_laplace as discrete_laplace
from discreet.random._keys import Purpose as Purpose
from discreet.random._keys import as_threefry as as_threefry
from discreet.random._keys import check_key as check_key
from discreet.random._keys import derives_apart as derives_apart
from discreet.random._keys import fast_bits as fast_bits
from discreet.random._keys import is_reproducible as is_reproducible
from discreet.random._keys import key as key
from discreet.random._keys import key_for as key_for
from discreet.random._keys import key_from_words as key_from_words
from discreet.random._keys import secret_key as secret_key
from discreet.random._keys import subkey as subkey
from discreet.random._keys import subkeys as subkeys
from discreet.random._normal import normal as normal
