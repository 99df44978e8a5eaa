"""A query: bounded rows of single records, one exact sum, noise, release."""

from discreet.query._exact import GRID_OF_PRODUCTS as GRID_OF_PRODUCTS
from discreet.query._exact import GRID_OF_SUMS as GRID_OF_SUMS
from discreet.query._exact import LAST as LAST
from discreet.query._exact import MOST_RECORDS as MOST_RECORDS
from discreet.query._exact import TURN as TURN
from discreet.query._exact import in_turns as in_turns
from discreet.query._exact import on_grid as on_grid
from discreet.query._exact import padded as padded
from discreet.query._exact import rounded as rounded
from discreet.query._exact import summed as summed
from discreet.query._exact import turns_for as turns_for
from discreet.query._exact import turns_of as turns_of
from discreet.query._query import Choice as Choice
from discreet.query._query import Gaussian as Gaussian
from discreet.query._query import Noise as Noise
from discreet.query._query import Query as Query
