"""What an attention layer can be given to look with."""

from eyeline.mechanisms.additive import Additive as Additive
from eyeline.mechanisms.base import Heads as Heads
from eyeline.mechanisms.base import Mechanism as Mechanism
from eyeline.mechanisms.base import auxiliary_loss as auxiliary_loss
from eyeline.mechanisms.base import register as register
from eyeline.mechanisms.exact import Exact as Exact
from eyeline.mechanisms.extra import ExtraKeys as ExtraKeys
from eyeline.mechanisms.extra import ExtraTokens as ExtraTokens
from eyeline.mechanisms.fewer.compressed import Compressed as Compressed
from eyeline.mechanisms.fewer.linformer import Linformer as Linformer
from eyeline.mechanisms.linear.attention import LinearAttention as LinearAttention
from eyeline.mechanisms.linear.features import Elu as Elu
from eyeline.mechanisms.linear.features import Favor as Favor
from eyeline.mechanisms.linear.features import FeatureMap as FeatureMap
from eyeline.mechanisms.linear.features import Relu as Relu
from eyeline.mechanisms.recipes import Recipe as Recipe
from eyeline.mechanisms.recipes import recipe as recipe
from eyeline.mechanisms.routed.attend import RoutedMechanism as RoutedMechanism
from eyeline.mechanisms.routed.clustered import ClusteredQueries as ClusteredQueries
from eyeline.mechanisms.routed.kmeans import KMeans as KMeans
from eyeline.mechanisms.routed.lsh import LSH as LSH
from eyeline.mechanisms.routed.picking import Threshold as Threshold
from eyeline.mechanisms.routed.picking import TopK as TopK
from eyeline.mechanisms.routed.sinkhorn import Sinkhorn as Sinkhorn
