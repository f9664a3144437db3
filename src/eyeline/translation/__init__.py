"""From one text to another: greedy and beam search, texts and their ids, and how good it was."""

from eyeline.translation.search import Hypothesis as Hypothesis
from eyeline.translation.search import beam_search as beam_search
from eyeline.translation.search import greedy as greedy
from eyeline.translation.texts import Report as Report
from eyeline.translation.texts import Translation as Translation
from eyeline.translation.texts import edit_distance as edit_distance
from eyeline.translation.texts import report as report
from eyeline.translation.texts import source_ids as source_ids
from eyeline.translation.texts import target_ids as target_ids
from eyeline.translation.texts import translate as translate
