"""Plugins: modules that register families, tasks, scores and position encodings of your own."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from anyformer.errors import ConfigError, Error


def load(name: str) -> ModuleType:
    """Import a plugin: a module by its name, from the current folder too, or a .py file."""
    path = Path(name)
    module = path.stem if path.suffix == ".py" else name
    if path.suffix == ".py" and not path.is_file():
        raise ConfigError(f"There is no plugin {name}; give the name of a module, or a .py file.")
    folder = str(path.absolute().parent if path.suffix == ".py" else Path.cwd())
    added = folder not in sys.path
    if added:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(module)
    except Error as error:
        raise ConfigError(f"The plugin {name} cannot be registered: {error}") from None
    except ModuleNotFoundError as error:
        if error.name != module:
            raise ConfigError(f"The plugin {name} needs the module {error.name}, which is not installed.") from None
        raise ConfigError(f"There is no module {name} to load as a plugin, installed or in {Path.cwd()}.") from None
    except Exception as error:  # a plugin may raise anything while it is imported
        raise ConfigError(f"The plugin {name} fails to import: {type(error).__name__}: {error}.") from error
    finally:
        if added:
            sys.path.remove(folder)
