"""The folders, addresses and model files that a configuration names, or their defaults."""

from __future__ import annotations

from pathlib import Path

from edged import paths
from edged.api.auth.guard import Guard
from edged.cameras.definitions import Definitions
from edged.config import Config
from edged.engines.drift_files import DRIFT_FOLDER
from edged.errors import InvalidInput
from edged.fleet.keys import FOLDER as FLEET_FOLDER
from edged.models.collected import FOLDER
from edged.models.entries import check_name
from edged.models.repository import Repository
from edged.store import state_format


def state_dir(config: Config) -> Path:
    """Return the state directory: models, cameras, galleries and other data that the daemon keeps."""
    return Path(config.state).expanduser().absolute() if config.state else paths.default_state_dir()


def cache_dir(config: Config) -> Path:
    """Return the cache directory: engines, golden answers, and other results that can be made again."""
    return Path(config.cache).expanduser().absolute() if config.cache else paths.default_cache_dir()


def repository(config: Config) -> Repository:
    """Return the repository of the models below the state directory."""
    return Repository(state_dir(config) / "models", accepts_foreign(config))


def cameras(config: Config) -> Definitions:
    """Return the cameras of the configuration and those below the state directory."""
    return Definitions(state_dir(config) / "cameras", config.cameras)


def accepts_foreign(config: Config) -> bool:
    """Whether the daemon uses models and engines that other users may have written."""
    return config.access.foreign_files == "accept"


def private(config: Config) -> tuple[Path, ...]:
    """Return folders and files that no child process may read."""
    tls = config.tls
    named = (tls.certificate, tls.key, tls.client_ca, config.access.tokens_file)
    files = (Path(each).expanduser().absolute() for each in named if each)
    state = state_dir(config)
    kept = state.glob(state_format.copy_name("*"))
    names = ("access", "audit", "lock", "cameras", "gallery", FOLDER, DRIFT_FOLDER, FLEET_FOLDER)
    return (*(state / name for name in names), *kept, *files)


def addresses(config: Config) -> tuple[str, ...]:
    """Return the addresses for gRPC."""
    return config.listen or default_sockets()


def guarded_http(config: Config) -> tuple[str, ...]:
    """Return the addresses for HTTP whose callers need roles: the address of the API and the address of the page."""
    return tuple(filter(None, (config.http.listen, config.page.listen)))


def unguarded_http(config: Config) -> tuple[str, ...]:
    """Return the addresses for HTTP whose callers need no role: the address of the metrics, if there is one."""
    return tuple(filter(None, (config.metrics.listen,)))


def guard_of(config: Config) -> Guard:
    """Return the guard of all addresses. Raises ConfigError if [tls] or [access] cannot be used."""
    guard = Guard(config.access, config.tls, state_dir(config), split_sockets(config))
    guard.require_known((*addresses(config), *guarded_http(config)), unguarded_http(config))
    return guard


def split_sockets(config: Config) -> tuple[str, str] | None:
    """Return the default sockets for frames and for operators if the daemon listens on both; otherwise None."""
    pair = default_sockets()
    return pair if set(pair) <= set(addresses(config)) else None


def default_sockets() -> tuple[str, str]:
    """Return the default addresses for frames and for operators."""
    return f"unix:{paths.default_socket()}", f"unix:{paths.operate_socket()}"


def named_models(config: Config) -> dict[str, Path]:
    """Return a mapping from the names of the models of the configuration to their files, which are served in place.
    Raises InvalidInput for an invalid name."""
    for name in config.models:
        check_model_name(config, name)
    return {name: Path(path).absolute() for name, path in config.models.items()}


def check_model_name(config: Config, name: str) -> None:
    """Raise InvalidInput if a model of the configuration has an invalid name, or the same name as a pipeline."""
    check_name(name)
    if name in config.pipelines:
        raise InvalidInput(f"pipelines.{name} has the same name as a model; give the pipeline another name")
