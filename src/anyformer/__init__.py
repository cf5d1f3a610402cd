"""anyformer: one library for every transformer, from text to images to anything."""

import anyformer.recipes  # once, before the function of the same name: a later import would put the package over it
from anyformer.core.taps import look
from anyformer.errors import ConfigError, Error, FolderError, InputError, WeightsError
from anyformer.model import Model
from anyformer.registry import build, recipes
from anyformer.run import Output
from anyformer.tokens import Tokens
from anyformer.weights.folder import load


from anyformer.version import __version__
