"""What kind of token it is, told from the decoded token alone.

No parser and no neighbours: a type is a function of the token's own characters, so it means the
same in every text and for a predicted token. The price is that English clues are used (the list
of function words, a leading space or a capital as the start of a word), and that a lower-case word
right after a bracket or at the start of a line counts as a continuation.
"""

from typing import Literal, get_args

TokenType = Literal[
    "whitespace",
    "punctuation",
    "digit",
    "function word",
    "content word",
    "subword continuation",
    "special",
]
TOKEN_TYPES: tuple[TokenType, ...] = get_args(TokenType)

_FUNCTION_WORDS = """
    a an the this that these those my your his her its our their mine yours hers ours theirs
    i you he she it we they me him us them myself yourself himself herself itself ourselves
    yourselves themselves one who whom whose which what whoever whatever whichever
    each every either neither some any no none all both half several many much more most few fewer
    less least other another such own same enough
    am is are was were be been being have has had having do does did doing done
    will would shall should can could may might must ought need dare
    ain aren isn wasn weren haven hasn hadn don doesn didn won wouldn shan shouldn couldn mustn
    about above across after against along amid among around as at before behind below beneath
    beside besides between beyond but by concerning despite down during except for from in inside
    into like near of off on onto out outside over past per regarding since than through throughout
    till to toward towards under underneath until up upon via with within without
    and or nor so yet if because although though unless whereas while whether once lest
    not n't never here there where when why how then thus hence therefore however
    very too quite rather just only even also else still already again ever perhaps
    thou thee thy thine ye hath doth art hast dost shalt wilt 'tis 'twas
    's 't 're 've 'm 'll 'd
"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())


def token_type(text: str, *, special: bool = False) -> TokenType:
    """The type of a token.

    Args:
        text: the decoded token with its leading space, if it has one. Empty for a token that holds
            only the rest of a character: a subword continuation.
        special: a control token, or part of a chat template.
    """
    if special:
        return "special"
    if text == "":
        return "subword continuation"
    word = text.strip()
    if word == "":
        return "whitespace"
    if not any(char.isalnum() for char in word):
        return "punctuation"
    if not any(char.isalpha() for char in word):
        return "digit"
    folded = word.replace("\u2019", "'").lower()
    if folded.startswith("'") and folded in FUNCTION_WORDS:
        return "function word"
    if not _starts_word(text):
        return "subword continuation"
    bare = folded.strip("'")
    return "function word" if bare in FUNCTION_WORDS else "content word"


def _starts_word(text: str) -> bool:
    """A leading space, punctuation or digit, a capital, or a letter of a script without case."""
    first = text[0]
    return not first.islower()
