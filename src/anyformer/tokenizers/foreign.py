"""Detecting text in an unexpected language by its letters and frequent words; None if in doubt.

other_than("en", "Wo ist der Bahnhof?") -> "German"
other_than("en", "Tom reads Der Spiegel.") -> None
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

NAMES = {
    "en": "English",
    "de": "German",
    "fr": "French",
    "es": "Spanish",
    "it": "Italian",
    "nl": "Dutch",
    "pt": "Portuguese",
}
# The most frequent words of each language; a word in two lists counts for both.
FREQUENT = {
    "en": "i you he she it we they me him her us them my your his its our their the a an this that these those is are"
    " was were be been am do does did done have has had will would can could should must may might don't doesn't"
    " didn't isn't not no yes and or but if because when where who what why how which with without for from to of"
    " in on at by about into over after before there here very too more than then now never always again all some"
    " any every please go let let's get come take make want like know think see said say tell good new one two"
    " people time up out off as so just i'm it's i'll i've you're that's what's he's she's can't won't ain't thank"
    " thanks hello goodbye stop wait",
    "de": "ich du er sie es wir ihr mich dich ihn uns euch mir dir ihm ihnen mein meine meinen dein deine sein seine"
    " seinen unser der die das den dem des ein eine einen einem einer eines dies diese dieser dieses ist sind war"
    " waren bin bist seid wird werden wurde wurden würde habe hast hat haben hatte hatten kann kannst können"
    " könnte muss müssen soll möchte will wollte nicht kein keine keinen nichts und oder aber wenn weil dass als"
    " wie wo wer was warum wann mit ohne für von vom zu zum zur im am auf aus bei nach über unter vor um durch"
    " gegen sehr auch noch schon nur hier da dort jetzt immer nie mehr viel viele etwas alles alle ja nein bitte"
    " danke gut guten mal heute morgen gestern gibt geht tun macht machen gehen kommen sich man hallo jeden jeder"
    " zehn zwei drei in an bedeutet deiner meiner ihre ihren diesem diesen ob doch denn lass uhr",
    "fr": "je tu il elle nous vous ils elles me te se moi toi lui leur leurs mon ma mes ton ta tes sa ses notre votre"
    " vos le la les un une des du de au aux ce cet cette ces ça cela est sont était étaient suis es êtes sommes"
    " être été ai as avons avez ont avait avoir fait faire faites peux peut pouvez veux veut voulez dois faut ne"
    " pas plus jamais rien et ou où mais si parce que qui quoi quand comment pourquoi quel quelle combien avec"
    " sans pour dans sur sous chez par vers entre très trop bien aussi encore toujours déjà ici là y en oui non"
    " merci bonjour tout tous toute c'est j'ai n'est qu'il qu'elle d'un d'une s'il l'on aujourd'hui deux beaucoup"
    " peu son vas va",
    "es": "yo tú él ella nosotros ellos ellas me te se lo le los las el la un una unos unas de del al que y o pero si"
    " no sí es son era eran soy eres está están estoy fue ser ha he han hay tengo tiene tienes hace muy más"
    " también porque cuando cómo dónde qué quién por para con sin en entre sobre mi tu su sus este esta esto ese"
    " esa nada nunca siempre todo todos gracias hola puedo puede quiero quiere ya aquí ahora bien hoy",
    "it": "io tu lui lei noi voi loro mi ti si ci vi lo la le gli il i un uno una di del della dei delle al alla da dal"
    " nel nella che e ed o ma se non sì è sono era erano sei siamo ho hai ha abbiamo hanno stato molto più anche"
    " perché quando come dove cosa chi per con senza in tra su mio mia tuo suo sua questo questa quello nulla mai"
    " sempre tutto tutti grazie ciao posso può voglio vuole qui adesso bene oggi c'è",
    "nl": "ik jij je hij zij ze wij we jullie mij hem haar ons mijn jouw zijn de het een dit dat deze die is ben bent"
    " was waren wordt worden heb hebt heeft hebben had kan kunnen moet moeten wil zal niet geen en of maar als"
    " omdat hoe waar wie wat waarom wanneer met zonder voor van naar in op aan bij uit over onder door te om er"
    " ook nog al hier nu altijd nooit meer veel iets alles ja nee alsjeblieft dank goed",
    "pt": "eu você ele ela nós eles elas me te se o a os as um uma de do da dos das no na nos nas que e ou mas não sim"
    " é são era eram sou está estão estou foi ser tem tenho há muito mais também porque quando como onde quem por"
    " para com sem em entre meu minha seu sua este esta isso nada nunca sempre tudo todos obrigado olá posso pode"
    " quero aqui agora bem hoje ao à",
}
KNOWN = {language: frozenset(words.split()) for language, words in FREQUENT.items()}
LETTERS = {"de": "äöüß", "fr": "àâçèéêëîïôœùû", "es": "áéíóúñ¿¡", "it": "àèéìòù", "nl": "ëï", "pt": "ãõáâçéêíóú"}
SCRIPTS = {
    "CYRILLIC": "Russian or another language in Cyrillic letters",
    "GREEK": "Greek",
    "ARABIC": "Arabic",
    "HEBREW": "Hebrew",
    "CJK": "Chinese or Japanese",
    "HIRAGANA": "Japanese",
    "KATAKANA": "Japanese",
    "HANGUL": "Korean",
    "DEVANAGARI": "Hindi",
    "THAI": "Thai",
}
WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
MORE = 1.5  # required lead of another language, in votes
ENOUGH = 1.0  # smaller lead that suffices if `language` has no votes and at least half of the words are no names


def other_than(language: str, text: str) -> str | None:
    """Return the name of the language of a text if it is clearly another one, else None."""
    words = WORD.findall(text.replace("’", "'"))
    script = _script(words)
    if script is not None or language not in NAMES or len(words) < 3:
        return script
    # Capitalized words inside the text are taken as names.
    plain = [word.lower() for n, word in enumerate(words) if n == 0 or not word[0].isupper() or word.isupper()]
    votes = {one: _votes(plain, one) for one in NAMES}
    own = votes.pop(language)
    best = max(votes, key=votes.__getitem__)
    ahead = votes[best] - own
    clear = ahead >= MORE or (ahead >= ENOUGH and own == 0 and 2 * len(plain) >= len(words))
    return NAMES[best] if clear else None


def _votes(words: list[str], language: str) -> float:
    """Count one vote per frequent word, and half a vote per word with a letter of the language."""
    known, letters = KNOWN[language], set(LETTERS.get(language, ""))
    return sum(1.0 if word in known else 0.5 if letters & set(word) else 0.0 for word in words)


def _script(words: list[str]) -> str | None:
    """Return the script of most letters, or None if it is Latin."""
    found = Counter(unicodedata.name(letter, "?").split()[0] for word in words for letter in word)
    if not found:
        return None
    script, many = found.most_common(1)[0]
    return SCRIPTS.get(script) if 2 * many > found.total() else None
