"""Secrets in settings and messages: find them, mask them, and keep them out of all output.

A secret is one of: the password of a URL (``scheme://user:password@host``; with HTTP also a lone
``token@host``), the value of a parameter with a secret name (``?token=...``, ``password=...``), or the value
of an environment variable with a secret name. `masked` uses the text alone. `redact` also replaces the
secrets that were registered while configs were read, anywhere in the text, because libraries quote them in
error messages.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import quote, quote_plus, unquote, unquote_plus

MASK: Final = "***"
# ``${NAME}`` or ``${NAME:-default}``: a reference to the environment, replaced when a config is read
REFERENCE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_NAMES: Final = (
    r"[\w.-]*(?:passw|passphrase|pwd|secret|token|signature|credential|api_?key|access_?key|account_?key"
    r"|private_?key)[\w.-]*|key|sig|sas|auth|pass"
)
_SECRET_NAME: Final = re.compile(rf"{_NAMES}|.*_(?:key|sig|sas|auth|pass)", re.IGNORECASE)
_WHOLE_URL: Final = re.compile(r"(\w[\w+.-]*:/{1,3})(.*)@([^@]*)", re.DOTALL)
_URL: Final = re.compile(r"(\w[\w+.-]*:/{1,3})([^\s\"']*)@()")
_WHOLE_URL_PARAMETER: Final = re.compile(rf"(?<![\w.-])({_NAMES})=([^&#]*)", re.IGNORECASE)
_PARAMETER: Final = re.compile(rf"(?<![\w.-])({_NAMES})=([^&#\s\"']*)", re.IGNORECASE)
_POSSIBLE: Final = re.compile(r"[@=\0]|\$\{")  # one is in every text with a secret, or that is changed
_PLACEHOLDER: Final = re.compile("\0([0-9]+)\0")  # replaces a reference while a text is parsed
_SHORTEST: Final = 4  # a shorter secret is masked in its own setting, not searched for in other texts

_registered: set[str] = set()


def is_secret_name(name: str) -> bool:
    """Tell whether an environment variable of this name holds a secret."""
    return _SECRET_NAME.fullmatch(name) is not None


def masked(text: str) -> str:
    """Replace secrets that the text itself shows by ``***``, also in the default of a kept reference."""
    return _mask(text, lambda _: None)


def contains_secret(text: str) -> bool:
    """Tell whether `masked` would change a text."""
    return masked(text) != text


def register_secrets(written: str, resolved: str, environment: Mapping[str, str]) -> None:
    """Remember the secrets of a setting, as written and as resolved, so that `redact` finds them."""
    secrets = {value for name, value in environment.items() if is_secret_name(name)}
    for text in (written, resolved):
        _mask(text, secrets.add)
    plain = {form for secret in secrets for form in (secret, unquote(secret), unquote_plus(secret))}
    encoded = {form for secret in plain for form in (quote(secret, safe=""), quote_plus(secret))}
    escaped = {form for s in plain | encoded for form in (json.dumps(s)[1:-1], repr(s + "\"'")[1:-4])}
    _registered.update(s for s in plain | encoded | escaped if len(s) >= _SHORTEST)


def register_secret(secret: str) -> None:
    """Remember a text that is secret as a whole, so that `redact` finds it in any text."""
    if len(secret) >= _SHORTEST:
        _registered.update({secret, quote(secret, safe=""), json.dumps(secret)[1:-1]})


def register_all_secrets(settings: object) -> None:
    """Remember the secrets in all strings of nested settings."""
    if isinstance(settings, str):
        register_secrets(settings, settings, {})
    elif isinstance(settings, Mapping):
        for item in settings.values():
            register_all_secrets(item)
    elif isinstance(settings, list | tuple):
        for item in settings:
            register_all_secrets(item)


def redact(text: str) -> str:
    """Mask the registered secrets in a message, and those that are recognisable in the message itself."""
    for secret in sorted(_registered, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return masked(text)


def _mask(text: str, found: Callable[[str], object]) -> str:
    """Mask the secrets of a text, and call ``found`` with each of them."""
    if not _POSSIBLE.search(text):
        return text
    references: list[re.Match[str]] = []

    def hold(match: re.Match[str]) -> str:
        references.append(match)
        return f"\0{len(references) - 1}\0"

    def show(match: re.Match[str], *, secret: bool) -> str:
        name, default = references[int(match[1])].groups()
        if not default:
            return references[int(match[1])][0]
        if secret or is_secret_name(name):
            return f"${{{name}:-{hide(default)}}}"
        return f"${{{name}:-{_mask(default, found)}}}"

    def hide(value: str) -> str:
        if value and value != MASK and not _PLACEHOLDER.search(value):
            found(value)
        shown, end = "", 0
        for match in _PLACEHOLDER.finditer(value):
            shown += (MASK if match.start() > end else "") + show(match, secret=True)
            end = match.end()
        return shown + (MASK if len(value) > end else "")

    def show_user(match: re.Match[str]) -> str:
        return show(match, secret=":" in str(references[int(match[1])][2]))  # user:password as one default

    def hide_in_url(match: re.Match[str]) -> str:
        scheme, who, rest = match.groups()
        user, colon, password = who.partition(":")
        http = scheme.lower().startswith("http")
        if "/" in user or (http and re.match(r"\d+(?:[/?#]|$)", password)):  # the @ is in the path
            return match[0]
        if colon:
            return f"{scheme}{user}:{hide(password)}@{rest}"
        if http:
            return f"{scheme}{hide(user)}@{rest}"
        return f"{scheme}{_PLACEHOLDER.sub(show_user, user)}@{rest}"

    held = REFERENCE.sub(hold, text.replace("\0", ""))
    whole = _WHOLE_URL.fullmatch(held)
    held = hide_in_url(whole) if whole else _URL.sub(hide_in_url, held)
    parameter = _WHOLE_URL_PARAMETER if re.match(r"\w[\w+.-]*:/", held) else _PARAMETER
    held = parameter.sub(lambda match: f"{match[1]}={hide(match[2])}", held)
    return _PLACEHOLDER.sub(lambda match: show(match, secret=False), held)
