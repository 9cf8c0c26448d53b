"""Writes values as programs write them: with the encoders of Python's library.

Reads lines of JSON, [before, value, after], and answers each with a line of
[encoder, what it wrote in base64].
"""
import base64, html, json, re, sys, urllib.parse
from xml.sax import saxutils

def numeric(form):
    return lambda text: "".join(form % ord(char) for char in text)

def some(form, every):
    """One character of so many, and what an encoder cannot leave as it is."""
    escaped = lambda i, c: i % every == 0 or c in "\\%&\""
    return lambda text: "".join(form % ord(c) if escaped(i, c) else c for i, c in enumerate(text))

text = {
    "plain": lambda t: t,
    "json": json.dumps,
    "json, PHP": lambda t: json.dumps(t).replace("/", "\\/"),
    "json in json": lambda t: json.dumps(json.dumps(t)),
    "json of PHP in json": lambda t: json.dumps(json.dumps(t).replace("/", "\\/")),
    "json, all escaped": numeric("\\u%04x"),
    "json, all escaped, capitals": numeric("\\u%04X"),
    "json in json in json": lambda t: json.dumps(json.dumps(json.dumps(t))),
    "repr": repr,
    "repr, bytes": lambda t: repr(t.encode()),
    "bytes, C": numeric("\\x%02x"),
    "octal": numeric("\\%03o"),
    "regular expression": re.escape,
    "quote": urllib.parse.quote,
    "quote all": lambda t: urllib.parse.quote(t, safe=""),
    "quote, small letters": lambda t: re.sub("%..", lambda m: m[0].lower(), urllib.parse.quote(t, safe="")),
    "quote_plus": urllib.parse.quote_plus,
    "urlencode": lambda t: urllib.parse.urlencode({"key": t}),
    "percent, all": numeric("%%%02x"),
    "quote of quote": lambda t: urllib.parse.quote(urllib.parse.quote(t, safe=""), safe=""),
    "quote of json": lambda t: urllib.parse.quote(json.dumps(t), safe=""),
    "json of quote": lambda t: json.dumps(urllib.parse.quote(t)),
    "html": html.escape,
    "html without quotes": lambda t: html.escape(t, quote=False),
    "xml attribute": saxutils.quoteattr,
    "html, decimal": numeric("&#%d;"),
    "html, hexadecimal": numeric("&#x%x;"),
    "html, capitals": numeric("&#X%04X;"),
    "html of html": lambda t: html.escape(html.escape(t)),
    "html of json": lambda t: html.escape(json.dumps(t)),
    "json of html": lambda t: json.dumps(html.escape(t)),
    "html of quote": lambda t: html.escape(urllib.parse.quote(t)),
}
for every in (2, 3, 7):
    text["json, each %d" % every] = some("\\u%04x", every)
    text["percent, each %d" % every] = some("%%%02X", every)
    text["html, each %d" % every] = some("&#%d;", every)

def lines(width, end):
    def encode(raw):
        whole = base64.b64encode(raw).decode()
        return end.join(whole[i:i + width] for i in range(0, len(whole), width)).encode()
    return encode

raw = {
    "base64": base64.b64encode,
    "base64 without padding": lambda b: base64.b64encode(b).rstrip(b"="),
    "base64 for addresses": base64.urlsafe_b64encode,
    "base64, MIME": base64.encodebytes,
    "base64, 64 columns": lines(64, "\n"),
    "base64, 76 columns, CR LF": lines(76, "\r\n"),
    "base64, yaml": lines(40, "\n      "),
    "base64, MIME, json": lambda b: json.dumps(base64.encodebytes(b).decode()).encode(),
    "base64, json, PHP": lambda b: json.dumps(base64.b64encode(b).decode()).replace("/", "\\/").encode(),
    "base64, quoted": lambda b: urllib.parse.quote(base64.b64encode(b).decode(), safe="").encode(),
    "hex": lambda b: b.hex().encode(),
    "HEX": lambda b: b.hex().upper().encode(),
    "utf-16-le": lambda b: b.decode().encode("utf-16-le"),
    "utf-16": lambda b: b.decode().encode("utf-16"),
    "utf-16-be": lambda b: b.decode().encode("utf-16-be"),
    "json, utf-16": lambda b: json.dumps(b.decode()).replace("/", "\\/").encode("utf-16-le"),
}

for line in sys.stdin:
    before, value, after = json.loads(line)
    written = [(name, encode(value).encode()) for name, encode in text.items()]
    written += [(name, encode((before + value + after).encode())) for name, encode in raw.items()]
    print(json.dumps([(name, base64.b64encode(bytes).decode()) for name, bytes in written]), flush=True)
