"""The end of each command's `--help`: an example and a page of the documentation."""

from __future__ import annotations

# By command: an example, and a file in docs/.
EXAMPLES: dict[str, tuple[str, str]] = {
    "up": ("edged up yolo.onnx rtsp://user:password@192.168.1.20/main", "cameras.md"),
    "demo": ("edged demo --cameras 2 --snapshot demo.jpg", "index.md"),
    "serve": ("edged serve --model doors=doors.onnx --listen localhost:8001", "service.md"),
    "config": ("edged config init", "configuration.md"),
    "config init": ("edged config init --out edged.toml", "configuration.md"),
    "config check": ("edged config check edged.toml", "configuration.md"),
    "config show": ("edged config show --origin", "configuration.md"),
    "models": ("edged models add doors doors.onnx", "models.md"),
    "models add": ("edged models add doors doors.onnx --set thresholds.score=0.4", "models.md"),
    "models list": ("edged models list", "models.md"),
    "models show": ("edged models show doors", "models.md"),
    "models set": ("edged models set doors thresholds.score=0.4", "models.md"),
    "models remove": ("edged models remove doors", "models.md"),
    "inspect": ("edged inspect doors.onnx --draw street.jpg", "admission.md"),
    "infer": ("edged infer doors street.jpg --save boxes.jpg", "streaming.md"),
    "stream": ("edged stream doors rtsp://192.168.1.20/main --seconds 60", "streaming.md"),
    "pipelines": ("edged pipelines", "pipelines.md"),
    "cameras": ("edged cameras", "cameras.md"),
    "cameras add": ("edged cameras add hall rtsp://192.168.1.20/main doors max_fps=10", "cameras.md"),
    "cameras set": ("edged cameras set hall max_fps=5", "cameras.md"),
    "cameras show": ("edged cameras show hall", "cameras.md"),
    "cameras enable": ("edged cameras enable hall", "cameras.md"),
    "cameras disable": ("edged cameras disable hall", "cameras.md"),
    "cameras remove": ("edged cameras remove hall", "cameras.md"),
    "status": ("edged status --json", "observability.md"),
    "top": ("edged top --target tls:dock-1:8001 --target tls:dock-2:8001", "observability.md"),
    "page": ("edged page --open", "page.md"),
    "engines": ("edged engines list", "engines.md"),
    "engines list": ("edged engines list", "engines.md"),
    "engines why": ("edged engines why doors", "engines.md"),
    "engines show": ("edged engines show 1a27f9d6b3c4", "engines.md"),
    "engines build": ("edged engines build doors.onnx --for sm_86", "engines.md"),
    "engines rebuild": ("edged engines rebuild doors --force --follow", "engines.md"),
    "engines verify": ("edged engines verify doors --follow", "engines.md"),
    "engines cancel": ("edged engines cancel --all", "engines.md"),
    "engines pin": ("edged engines pin doors", "engines.md"),
    "engines unpin": ("edged engines unpin doors", "engines.md"),
    "engines evict": ("edged engines evict --all", "engines.md"),
    "events": ("edged events --follow", "observability.md"),
    "logs": ("edged logs --follow --model doors", "observability.md"),
    "inventory": ("edged inventory check boxes.toml", "remote.md"),
    "inventory check": ("edged inventory check boxes.toml", "remote.md"),
    "device": ("edged device", "engines.md"),
    "device refresh": ("edged device refresh", "engines.md"),
    "doctor": ("edged doctor -v", "doctor.md"),
    "report": ("edged report -o edged-report.md", "proven.md"),
    "self-check": ("edged self-check --quick", "doctor.md"),
    "reload": ("sudo edged reload", "configuration.md"),
    "tls": ("edged tls new dock-1 192.168.1.20", "security.md"),
    "tls new": ("edged tls new dock-1 192.168.1.20", "security.md"),
    "tokens": ("edged tokens list", "security.md"),
    "tokens new": ("edged tokens new dashboard --role read --days 90", "security.md"),
    "tokens list": ("edged tokens list", "security.md"),
    "tokens revoke": ("edged tokens revoke dashboard", "security.md"),
}


def epilog(command: str) -> str:
    """Return the last lines of a command's help."""
    example, page = EXAMPLES[command]
    return f"\b\nExample:  {example}\nMore:     docs/{page}"
