"""What a configuration means in places: folders, addresses and model files, with the defaults where it names none."""

from __future__ import annotations

from pathlib import Path

from edged import paths
from edged.api.auth.guard import Guard
from edged.config import Config
from edged.models.entries import check_name
from edged.models.repository import Repository


def state_dir(config: Config) -> Path:
    """Where models are kept."""
    return Path(config.state).expanduser().absolute() if config.state else paths.default_state_dir()


def cache_dir(config: Config) -> Path:
    """Where engines are kept."""
    return Path(config.cache).expanduser().absolute() if config.cache else paths.default_cache_dir()


def repository(config: Config) -> Repository:
    """The models below the state directory."""
    return Repository(state_dir(config) / "models", accepts_foreign(config))


def accepts_foreign(config: Config) -> bool:
    """Whether models and engines are used that others may have put there."""
    return config.access.foreign_files == "accept"


def private(config: Config) -> tuple[Path, ...]:
    """Folders and files that nothing but the daemon has business with."""
    tls = config.tls
    named = (tls.certificate, tls.key, tls.client_ca, config.access.tokens_file)
    files = (Path(each).expanduser().absolute() for each in named if each)
    state = state_dir(config)
    return (state / "access", state / "audit", state / "lock", *files)


def addresses(config: Config) -> tuple[str, ...]:
    """Where gRPC answers."""
    return config.listen or default_sockets()


def beside(config: Config) -> tuple[str, ...]:
    """Where calls are let in or not, besides gRPC's addresses."""
    return (config.http.listen,) if config.http.listen else ()


def guard_of(config: Config) -> Guard:
    """Who may do what. ConfigError where that cannot be used as configured."""
    guard = Guard(config.access, config.tls, state_dir(config), split_sockets(config))
    guard.require_known((*addresses(config), *beside(config)))
    return guard


def split_sockets(config: Config) -> tuple[str, str] | None:
    """The sockets for frames and for operators where it listens at both; one alone has to answer everybody."""
    pair = default_sockets()
    return pair if set(pair) <= set(addresses(config)) else None


def default_sockets() -> tuple[str, str]:
    """The addresses for frames and for operators of a daemon that is not told any."""
    return f"unix:{paths.default_socket()}", f"unix:{paths.operate_socket()}"


def named_models(config: Config) -> dict[str, Path]:
    """The models that are served where they lie. InvalidInput for a name that no model can have."""
    for name in config.models:
        check_name(name)
    return {name: Path(path).absolute() for name, path in config.models.items()}
