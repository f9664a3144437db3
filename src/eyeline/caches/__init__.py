"""Storage of keys and values while a model writes. No masks and no attention here."""

from eyeline.caches.base import Cache as Cache
from eyeline.caches.base import LayerCache as LayerCache
from eyeline.caches.buffers import Layout as Layout
from eyeline.caches.evicting import Evicting as Evicting
from eyeline.caches.growing import Growing as Growing
from eyeline.caches.marked import Mark as Mark
from eyeline.caches.marked import Marked as Marked
from eyeline.caches.marked import Pool as Pool
from eyeline.caches.select import cache_for as cache_for
from eyeline.caches.select import cache_in as cache_in
from eyeline.caches.select import needed_slots as needed_slots
from eyeline.caches.state import Kept as Kept
from eyeline.caches.state import State as State
from eyeline.tokens.ordering import Ranks as Ranks
from eyeline.tokens.ordering import recount as recount
