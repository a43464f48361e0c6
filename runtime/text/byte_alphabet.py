"""GPT-2's alphabet: one printable character per byte, in which byte-level vocabularies are written.

Source: bytes_to_unicode in https://github.com/openai/gpt-2/blob/master/src/encoder.py.
"""

_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = sorted(set(range(256)) - set(_PRINTABLE))
_BYTE_OF_CHARACTER = {byte: byte for byte in _PRINTABLE} | {256 + n: byte for n, byte in enumerate(_OTHERS)}


def bytes_of(token: str) -> bytes:
    """The bytes that a token's characters stand for; its UTF-8 where one is outside the alphabet."""
    try:
        return bytes([_BYTE_OF_CHARACTER[ord(character)] for character in token])
    except KeyError:
        return token.encode()
