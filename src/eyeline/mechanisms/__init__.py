"""What an attention layer can be given to look with."""

from eyeline.kernels.features import Elu as Elu
from eyeline.kernels.features import Favor as Favor
from eyeline.kernels.features import FeatureMap as FeatureMap
from eyeline.kernels.features import Relu as Relu
from eyeline.mechanisms.additive import Additive as Additive
from eyeline.mechanisms.auxiliary import auxiliary_loss as auxiliary_loss
from eyeline.mechanisms.clustered import ClusteredQueries as ClusteredQueries
from eyeline.mechanisms.compressed import Compressed as Compressed
from eyeline.mechanisms.exact import Exact as Exact
from eyeline.mechanisms.extra_keys import ExtraKeys as ExtraKeys
from eyeline.mechanisms.extra_tokens import ExtraTokens as ExtraTokens
from eyeline.mechanisms.kmeans import KMeans as KMeans
from eyeline.mechanisms.linear import LinearAttention as LinearAttention
from eyeline.mechanisms.linformer import Linformer as Linformer
from eyeline.mechanisms.lsh import LSH as LSH
from eyeline.mechanisms.making import Heads as Heads
from eyeline.mechanisms.recipes import Recipe as Recipe
from eyeline.mechanisms.recipes import recipe as recipe
from eyeline.mechanisms.sinkhorn import Sinkhorn as Sinkhorn
from eyeline.mechanisms.threshold import Threshold as Threshold
from eyeline.mechanisms.topk import TopK as TopK
