"""What is a secret, and how it is redacted from every text that leaves a process: files, logs, screens.

Secrets are: the values of environment variables that are named like secrets, in any spelling (`spellings`); texts that
look like a token of a known service; and values beside a secret's name, in a URL or in a header. Other text stays as
it is: hashes, ids, paths, numbers. `redact` runs for every line of every log, so it looks for fixed words first, which
costs microseconds, and only then for patterns, each of which is bounded.

It imports little, and nothing of this project, as the processes that run user code import it first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import pairwise

MARK = "[secret]"
MIN_LENGTH = 8  # characters of a value that is redacted wherever it stands; a shorter one would redact words, too
_MIN_REGISTERED = 6  # characters of a value that can be registered as a secret

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")  # of `X-Api-Key`, `api_key`, `apiKey` and `API_KEY`
_WORD_ENDINGS = ("token", "secret", "password", "passwd", "passphrase", "apikey", "cookie", "sshpass")
"""A name with a word that ends so is a secret's: PGPASSWORD."""
_SECRET_WORDS = {
    "secrets", "passwords", "creds", "credential", "credentials", "cookies", "authorization", "jwt", "sas", "dsn",
    "webhook", "pat", "pwd", "auth",
}  # fmt: skip
"""A name with one of these words is a secret's."""
_LAST_WORDS = {"tokens", "pass"}
"""An environment variable whose last word is one of these is a secret; `PASS_RATE` is not."""
_LOGINS = {"db", "database", "user", "login", "smtp", "mail", "ssh", "ftp", "proxy", "root", "admin", "redis", "mysql",
           "postgres"}  # fmt: skip
"""A setting that ends with `pass` is a secret if one of these comes before; `first_pass` is not."""
_KEY_WORDS = {"key", "keys", "tokens"}
"""With an owner these name a secret (`openai_key`); a key without one may be that of a dict."""
_KEY_OWNERS = {
    "api", "access", "private", "secret", "encryption", "signing", "master", "deploy", "ssh", "openai",
    "anthropic", "azure", "aws", "gcp", "google", "gemini", "hf", "huggingface", "wandb", "swanlab", "comet",
    "neptune", "kaggle", "modelscope", "dashscope", "deepseek", "mistral", "cohere", "groq", "xai", "together",
    "fireworks", "replicate", "openrouter", "perplexity", "moonshot", "zhipu", "nvidia", "ngc", "langsmith",
    "langfuse", "tavily", "serper", "pinecone", "stripe", "slack", "datadog", "sentry",
}  # fmt: skip
_WORDS_BEFORE_KEY = {"storage", "account", "project", "service", "live", "test", "prod", "dev"}
"""What may come between an owner and its key: `azure_storage_key`."""
_POINTER_ENDINGS = {"env", "path", "file", "dir", "sock", "name", "type", "mode", "domain", "endpoint", "count",
           "limit", "budget", "length"}  # fmt: skip
"""A variable with such an ending says where a secret is, or something about it, and holds none."""
_SETTING_POINTER_ENDINGS = _POINTER_ENDINGS | {"id", "url"}
"""The same of settings; as a variable, VAULT_SECRET_ID is half of a secret, and a URL may hold one."""
_SECRET_ENDINGS = (["key", "id"], ["webhook", "url"])
"""Endings of names of secrets, although their last word is a pointer's."""
_MODEL_TOKEN_WORDS = {"eos", "bos", "pad", "unk", "sep", "cls", "mask", "image", "video", "audio", "special", "stop",
            "max", "min", "num", "total", "per"}  # fmt: skip
"""Beside these words, a token is one that a model reads."""
_TOKEN_COUNT_WORDS = {"new", "input", "output", "prompt", "completion", "batched"}
"""Beside these words, `tokens` are those that a model reads; NEW_TOKEN may be a secret."""


def is_secret_name(name: str, *, key: bool = False) -> bool:
    """Whether a setting, variable, field or header of this name likely holds a secret, and not only says where one is:
    HF_TOKEN, WANDB_API_KEY, `X-Api-Key`, but not `token_env`. `key`: the name stands before a value in a query or a
    header, where every key, and every name that elsewhere only points to a secret, counts as a secret's."""
    words = [word.lower() for word in _WORD.findall(name)]
    if key:
        anywhere, last = _SECRET_WORDS | {"key"}, {"pass"}
    elif name.isupper():
        words = _words_of_secret(words, _POINTER_ENDINGS)
        anywhere, last = _SECRET_WORDS, _LAST_WORDS
    else:
        words = _words_of_secret(words, _SETTING_POINTER_ENDINGS)
        anywhere, last = _SECRET_WORDS, {"pass"} if words == ["pass"] or _LOGINS.intersection(words[-2:-1]) else set()
    if anywhere.intersection(words) or last.intersection(words[-1:]):
        return True
    return any(word.endswith(_WORD_ENDINGS) for word in words) or _is_owned(words, beside=not name.isupper())


def _is_owned(words: list[str], *, beside: bool) -> bool:
    """Whether the name has a key and its owner; `beside`: as neighbours, else also as its only two words."""
    pairs = {frozenset(pair) for pair in pairwise(word for word in words if word not in _WORDS_BEFORE_KEY)}
    if not beside and "public" not in words:
        pairs.add(frozenset(words))
    return {"connection", "string"} in pairs or any(pair & _KEY_OWNERS and pair & _KEY_WORDS for pair in pairs)


def _words_of_secret(words: list[str], points: set[str]) -> list[str]:
    """The words of a name that may mark its value as a secret: none where the name only points to a secret, and without
    tokens that a model reads."""
    if words == ["pwd"] or (words and words[-1] in points and words[-2:] not in _SECRET_ENDINGS):
        return []
    counted = {"token", "tokens"} if not _KEY_OWNERS.intersection(words) else {"tokens"}  # VIDEO_API_TOKEN is a secret
    if _MODEL_TOKEN_WORDS.intersection(words):
        return [word for word in words if word not in counted]
    return [word for word in words if word != "tokens"] if _TOKEN_COUNT_WORDS.intersection(words) else words


# ---- the environment

_LOGIN = re.compile(r"://([^\s/?#]*)@")


def secrets_of_environment(environment: Mapping[str, str]) -> Iterator[str]:
    """Values of variables named like secrets, and passwords in URLs (proxies) of all variables."""
    for name, value in environment.items():
        if is_secret_name(name):
            yield value.strip()
        yield from passwords_in_urls(value)


def passwords_in_urls(text: str) -> Iterator[str]:
    """The password of each URL in a text, or the user name where there is no password."""
    for login in _LOGIN.finditer(text):
        user, colon, password = login[1].partition(":")
        yield password if colon else user


def _is_common_text(value: str) -> bool:
    """Whether the value may well occur in text that is not secret: a short word or number, a path."""
    is_word = value.isalpha() and value in (value.lower(), value.title(), value.upper())
    if len(value) < MIN_LENGTH or value in MARK or (len(value) < 12 and (is_word or _is_number(value))):
        return True
    return value.startswith(("/", "~/", "./", "../")) and value.count("/") > 1 and _has_folder(value)


def _is_number(value: str) -> bool:
    """Whether it is a number, which is never redacted: that would leave invalid JSON."""
    try:
        float(value.rstrip("."))
    except ValueError:
        return False
    return True


def _has_folder(value: str) -> bool:
    try:
        return os.path.exists(os.path.dirname(os.path.expanduser(value)))
    except ValueError:  # a NUL
        return False


def spellings(value: str) -> list[str]:
    """How a value may be written: as it is, in a URL, in JSON, as Python shows it, and within base64."""
    import base64  # noqa: PLC0415  # late: most processes have no secret to look for
    import json  # noqa: PLC0415  # late, as above
    from urllib.parse import quote, quote_plus, unquote  # noqa: PLC0415  # late, as above

    forms = [value, unquote(value)]
    for plain in tuple(forms):
        forms += [quote(plain, safe=""), quote(plain), quote_plus(plain), repr(plain)[1:-1]]
        forms += [json.dumps(plain)[1:-1], json.dumps(plain, ensure_ascii=False)[1:-1]]
        data = plain.encode("utf-8", "surrogateescape")
        for before in range(3):  # three bytes make four letters, so it depends on where the value begins
            bits = 8 * (before + len(data))
            text = base64.b64encode(bytes(before) + data).decode()[-(-8 * before // 6) : bits // 6]
            forms += [text, text.replace("+", "-").replace("/", "_")]
    lines = [line for line in value.splitlines() if len(line) >= 2 * MIN_LENGTH]  # logs hold keys line by line
    return [form for form in dict.fromkeys([*forms, *lines]) if len(form) >= _MIN_REGISTERED]


_registered: set[str] = set()


def register_secret(value: str) -> None:
    """From now on, redact this value, too, in this process; texts of fewer than 6 characters are ignored."""
    if len(value) >= _MIN_REGISTERED and value not in MARK:
        _registered.add(value)


@lru_cache(1)
def secrets_of(registered: int) -> tuple[str, ...]:
    """All spellings of all secrets, the longest first. The environment is read again only after a registration: their
    number is the key, so that one of another thread makes a cached result invalid."""
    values = {value for value in secrets_of_environment(os.environ) if not _is_common_text(value)} | _registered
    return tuple(sorted({form for value in values for form in spellings(value)}, key=len, reverse=True))


# ---- what tokens look like

_EDGE = r"(?:(?<![A-Za-z0-9])|(?<=\\[bfnrt]))"  # before a token; the `n` of an escaped line end in JSON is not a letter
_LINE_END = r"(?:\r?\n|\\{1,4}[nr])"
_PEM = (  # whole lines, or long runs, are of the key; the text behind them is not, also where END is missing
    r"-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----"
    rf"(?:{_LINE_END}[ \t]{{0,16}}(?:Proc-Type|DEK-Info): [A-Za-z0-9,-]{{1,80}}(?={_LINE_END})){{0,2}}"
    rf"(?:(?:{_LINE_END}){{1,3}}[ \t]{{0,16}}[A-Za-z0-9+/=]{{1,4096}}+(?=[\s\\\"'-]|\Z)"
    r"|[ \t]{0,3}[A-Za-z0-9+/=]{32,4096}+){0,200}"
    rf"(?:(?:{_LINE_END}|[ \t]){{0,3}}[A-Za-z0-9+/=]{{0,64}}(?:{_LINE_END}|[ \t]){{0,3}}-----END)?"
)
_TOKEN_SHAPES = {
    "hf_": r"hf_[A-Za-z0-9]{20,}",
    "api_org_": r"api_org_[A-Za-z0-9]{20,}",
    "sk-": _EDGE + r"sk-(?:(?:proj|svcacct|admin|or-v1|ant-[a-z]{2,6}[0-9]{2})-[A-Za-z0-9_-]{20,}"
                   r"|[A-Za-z0-9_]{20,}[A-Za-z0-9_-]*)",
    **{f"gh{kind}_": _EDGE + rf"gh{kind}_[A-Za-z0-9]{{20,}}" for kind in "pousr"},
    "github_pat_": r"github_pat_[A-Za-z0-9_]{20,}",
    "glpat-": r"glpat-[A-Za-z0-9_-]{16,}",
    "xox": _EDGE + r"xox[abeprs]-[A-Za-z0-9-]{10,}",
    "AKIA": _EDGE + r"AKIA[A-Z0-9]{16}(?![A-Za-z0-9])",
    "ASIA": _EDGE + r"ASIA[A-Z0-9]{16}(?![A-Za-z0-9])",
    "AIza": _EDGE + r"AIza[A-Za-z0-9_-]{35}",
    "eyJ": r"eyJ[A-Za-z0-9_-]{8,}+(\.eyJ[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]*)?",  # without the group: no token
    "ms-": _EDGE + r"ms-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "nvapi-": r"nvapi-[A-Za-z0-9_-]{20,}",
    "npm_": _EDGE + r"npm_[A-Za-z0-9]{30,}",
    "pypi-": _EDGE + r"pypi-[A-Za-z0-9_-]{40,}",
    "dckr_pat_": r"dckr_pat_[A-Za-z0-9_-]{16,}",
    "PRIVATE KEY-----": _PEM,
}  # fmt: skip
_TOKEN_PATTERNS = [(word, re.compile(shape)) for word, shape in _TOKEN_SHAPES.items()]
_USER = re.compile(r"(:/{1,2})([^\s/?#\"'<>\\:@]{0,256}:[^\s/?#\"'<>\\]{1,256}|[^\s/?#\"'<>\\:@]{16,256})@")
_QUERY = re.compile(r"([?&;]|%26|%3F)([A-Za-z0-9_.-]{1,64})(=|%3D)([^&\s\"'<>\\#;]{6,})")
_SIGNED = {"sig", "signature", "credential", "policy", "x-amz-signature", "x-amz-credential", "awsaccesskeyid"}

# ---- what stands beside a name

_NAMED_VALUE = re.compile(
    r"(?:api[_-]?key|(?:secret|access|private|signing)[_-]?(?:access[_-]?)?key(?:[_-]?id)?|token|secret|passw(?:or)?d|passphrase"
    r"|credentials?|cookie)(?:\\{0,3}[\"'])?\s{0,3}[:=]\s{0,3}(?:\\{0,3}[\"'])?"
    r"(?!\.{0,2}/|~/|https?://)([A-Za-z0-9+/_~!@#$%^*.-][^\s\"'\\,;&<>(){}\[\]]{7,})",
    re.IGNORECASE,
)
_HEADER = re.compile(
    r"authorization(?:\\{0,3}[\"'])?\s{0,3}[:=]\s{0,3}(?:\\{0,3}[\"'])?"
    r"(?:(?:bearer|basic|token|digest|negotiate)\s{1,3})?((?!\[secret\]|(?:bearer|basic|token|digest|negotiate)\b)[^\s\"'\\,;(){}\[\]]{4,})",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(?:bearer|basic)\s{1,3}([A-Za-z0-9._~+/=-]{12,})", re.IGNORECASE)
_HEX = re.compile(r"(?:(?<![0-9a-z])|(?<=wandb))[0-9a-f]{40}(?![0-9a-f])")  # a key of W&B, or a hash
_NAMED_PATTERNS = [
    *((word, _NAMED_VALUE) for word in ("token", "secret", "passw", "passphrase", "credential", "cookie")),
    *((word, _NAMED_VALUE) for word in ("api_key", "api-key", "apikey", "access_key", "accesskey", "access-key")),
    *((word, _NAMED_VALUE) for word in ("private_key", "private-key", "privatekey", "signing_key", "secretkey")),
    ("authorization", _HEADER), ("bearer", _BEARER), ("basic", _BEARER),
]  # fmt: skip


def redact(text: str) -> str:
    """`text` with each secret replaced by MARK. It is idempotent, and JSON stays valid JSON."""
    for value in secrets_of(len(_registered)):
        if value in text:
            text = text.replace(value, MARK)
    for word, pattern in _TOKEN_PATTERNS:
        if word in text:
            text = pattern.sub(_without_token, text)
    if ":/" in text and "@" in text:
        text = _USER.sub(_without_login, text)
    if ("=" in text and ("?" in text or "&" in text)) or "%3D" in text:
        text = _QUERY.sub(_without_value, text)
    return _redact_named_values(text)


def _without_token(match: re.Match[str]) -> str:
    return match[0] if match.re.groups and match[1] is None else MARK


def _without_login(match: re.Match[str]) -> str:
    innocent = ":" not in match[2] and match[2].isalpha()
    return match[0] if innocent else f"{match[1]}{MARK}@"


def _without_value(match: re.Match[str]) -> str:
    name, value = match[2], match[4]
    likely = is_secret_name(name, key=True) or name.lower() in _SIGNED
    return f"{match[1]}{name}{match[3]}{MARK}" if likely and not _is_number(value) else match[0]


def _redact_named_values(text: str) -> str:
    """`text` with the values beside names of secrets replaced by MARK."""
    lowered = text.lower()
    if len(lowered) != len(text):  # a letter whose lower case is two characters
        lowered = "".join(letter.lower() if letter.isascii() else letter for letter in text)
    spans: list[tuple[int, int]] = []
    for word, pattern in _NAMED_PATTERNS:
        start = lowered.find(word)
        while start >= 0:
            match = pattern.match(text, start)
            if match and _is_likely_secret(match[1], letters=pattern is not _NAMED_VALUE):
                spans.append(match.span(1))
            # a part of a value that is not secret is not secret either, so the search goes on behind the value
            start = lowered.find(word, match.end(1) if match else start + len(word))
    if "wandb" in lowered:
        hashes = ((hex_.span(), lowered[max(0, hex_.start() - 66) : hex_.start()]) for hex_ in _HEX.finditer(lowered))
        spans += [span for span, before in hashes if "wandb" in before.rpartition("\n")[2]]
    pieces, done = list[str](), 0
    for begin, end in sorted(spans):
        if begin >= done:
            pieces += [text[done:begin], MARK]
        done = max(done, end)
    return "".join([*pieces, text[done:]])


def _is_likely_secret(value: str, *, letters: bool) -> bool:
    """Whether a value beside a secret's name is likely secret: no number; unless `letters`, with letter and digit."""
    if _is_number(value):
        return False
    return letters or (any(map(str.isalpha, value)) and any(map(str.isdigit, value)))


def printable(text: str, layout: str = "\n") -> str:
    """`text` for a screen or a page: secrets redacted; lone surrogates, and control and direction characters that are
    not in `layout`, as escapes."""
    safe = redact(text).encode("utf-8", "backslashreplace").decode()
    if safe.isprintable():  # nearly all
        return safe
    return "".join(c if c.isprintable() or c in layout else f"\\x{ord(c):02x}" for c in safe)


def cut_middle(text: str, most: int, gap: str = " [... {} characters ...] ") -> str:
    """`text`; if it is longer than `most` characters, redacted, and its first and last `most` // 2 around `gap`."""
    if len(text) <= most:
        return text
    text, half = redact(text), max(most // 2, 1)
    return f"{text[:half]}{gap.format(len(text) - 2 * half)}{text[-half:]}" if len(text) > most else text
