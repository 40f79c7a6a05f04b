"""The files: invented offices, each with notes on its staff, ledgers and letters, and questions that they answer.

An office is a directory of its own and a question is about one office, so a question of the evaluation can share
neither a file nor a person with one of the training. Which of the two an office belongs to is decided by a hash of its
name. What stands in its files follows from its name, the seed and the difficulty alone.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Difficulty = Literal["easy", "medium", "hard"]
Split = Literal["train", "eval"]

BEGIN = "Tarn Brun Holl Varn Esk Drum Kell Morn Sund Wick Ald Farn Gris Harth Lind Oster Pell Quar Rav Stav Thorn Ulv"
MIDDLE = "a e i o u en er ing"
END = "holm now dale wick fell mere stad burg haven mouth gard ness port by ford lund moor beck garth stead well cote"
FIRST = "Ilva Orrin Tessa Bram Maud Corvin Hedda Jorn Lisbet Anselm Petra Rurik Sunniva Tobin Una Viggo Wilma Yorick"
LAST = "Brandt Varnholt Eskild Holloway Drummer Kestrel Marsh Okonor Pell Quist Rasmus Sorrel Thane Umber Vance Wren"
GOODS = "salt|lamp oil|rope|timber|wool|candle|paper|tar|coal|flax|glass|copper|grain|leather|ink|sailcloth"
PAID = (
    *("Hobb & Sons", "the Widow Aske", "Grimm Brothers", "the Old Mill"),
    *("Captain Dorn", "Fenn & Fenn", "the Ropewalk", "Master Ivo"),
)
MADE_OF = "brass silver copper wooden ivory leather glass iron painted cracked gilded folded"
THINGS = "sextant|globe|music box|inkwell|telescope|mirror|kettle|barometer|compass|lantern|map case|anchor|bell|clock"
MONTHS = "January February March April May June July August September October November December"
DATES = [f"{day} {month} 1871" for month in MONTHS.split() for day in range(1, 29)]


@dataclass(frozen=True)
class Size:
    hops: tuple[int, ...]
    staff: int
    letters: int
    entries: int  # in each ledger


SIZES: dict[Difficulty, Size] = {
    "easy": Size(hops=(1,), staff=4, letters=5, entries=12),
    "medium": Size(hops=(1, 2), staff=8, letters=10, entries=24),
    "hard": Size(hops=(2, 3), staff=14, letters=20, entries=48),
}
QUESTIONS_PER_OFFICE = 8


@dataclass(frozen=True)
class Question:
    text: str
    answer: str
    hops: int  # files that have to be read, one leading to the next


@dataclass
class Person:
    name: str
    wage: int
    goods: str  # whose ledger they keep
    deputy: str = ""


@dataclass(frozen=True)
class Letter:
    number: int
    writer: str
    thing: str
    shelf: int
    other_thing: str


@dataclass
class Office:
    name: str
    people: dict[str, Person] = field(default_factory=dict)
    letters: list[Letter] = field(default_factory=list)
    ledgers: dict[str, dict[tuple[str, str], int]] = field(default_factory=dict)  # goods, then (date, firm)

    @property
    def directory(self) -> str:
        return self.name.lower()

    def files(self) -> dict[str, str]:
        """Path below the office's directory, and text."""
        files = {f"notes/{_slug(person.name)}.txt": _note(person) for person in self.people.values()}
        files |= {f"letters/{letter.number:03}.txt": _letter(letter) for letter in self.letters}
        files |= {f"ledgers/{_slug(goods)}.csv": _ledger(entries) for goods, entries in self.ledgers.items()}
        return files

    def write(self, root: Path) -> None:
        for path, text in self.files().items():
            file = root / self.directory / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")

    # Questions

    def questions(self, hops: int) -> list[Question]:
        """All questions that take this many files."""
        return [*self._wages(hops), *self._payments(hops), *(self._shelves() if hops == 1 else [])]

    def _ways_to_people(self, hops: int) -> list[tuple[str, Person]]:
        """Ways to identify a person that need a given number of files, and that person."""
        people = self.people
        if hops == 0:
            return [(person.name, person) for person in people.values()]
        ways = [(f"the deputy of {way}", people[person.deputy]) for way, person in self._ways_to_people(hops - 1)]
        if hops == 1:
            ways += [
                (f"the writer of the letter that says where the {letter.thing} is", people[letter.writer])
                for letter in self.letters
            ]
        return ways

    def _wages(self, hops: int) -> list[Question]:
        return [
            Question(f"How many crowns a year is {way} paid?", str(person.wage), hops)
            for way, person in self._ways_to_people(hops - 1)
        ]

    def _payments(self, hops: int) -> list[Question]:
        ledgers = (
            [(f"the {goods} ledger", goods) for goods in self.ledgers]
            if hops == 1
            else [(f"the ledger that {way} keeps", person.goods) for way, person in self._ways_to_people(hops - 2)]
        )
        return [
            Question(f"How many crowns does {ledger} say were paid to {firm} on {date}?", str(amount), hops)
            for ledger, goods in ledgers
            for (date, firm), amount in self.ledgers[goods].items()
        ]

    def _shelves(self) -> list[Question]:
        return [Question(f"On which shelf is the {letter.thing}?", str(letter.shelf), 1) for letter in self.letters]


def split_of(name: str) -> Split:
    """A quarter of all offices is for evaluation."""
    return "eval" if zlib.crc32(name.encode()) % 4 == 0 else "train"


def office_names(split: Split) -> list[str]:
    names = {first + middle + last for first in BEGIN.split() for middle in MIDDLE.split() for last in END.split()}
    return sorted(name for name in names if split_of(name) == split)


def make_office(name: str, seed: int, difficulty: Difficulty) -> Office:
    size = SIZES[difficulty]
    chance = random.Random(f"{name} {seed} {difficulty}")
    everybody = [f"{first} {last}" for first in FIRST.split() for last in LAST.split()]
    names = chance.sample(everybody, size.staff)
    goods = chance.sample(GOODS.split("|"), size.staff)
    people = [Person(who, chance.randint(300, 2999), what) for who, what in zip(names, goods, strict=True)]
    for person in people:
        person.deputy = chance.choice([other.name for other in people if other is not person])
    things = [f"{kind} {thing}" for kind in MADE_OF.split() for thing in THINGS.split("|")]
    chosen = chance.sample(things, size.letters + 1)
    letters = [
        Letter(
            number=number,
            writer=chance.choice(people).name,
            thing=chosen[number],
            shelf=chance.randint(100, 999),
            other_thing=chance.choice([thing for thing in chosen if thing != chosen[number]]),
        )
        for number in range(1, size.letters + 1)
    ]
    return Office(
        name=name,
        people={person.name: person for person in people},
        letters=letters,
        ledgers={what: _entries(chance, size.entries) for what in goods},
    )


def make_offices(split: Split, tasks: int, seed: int, difficulty: Difficulty) -> list[Office]:
    """Enough offices for so many tasks, or all there are. Which ones is up to the seed."""
    names = office_names(split)
    random.Random(f"{split} {seed}").shuffle(names)
    return [make_office(name, seed, difficulty) for name in names[: -(-tasks // QUESTIONS_PER_OFFICE)]]


def pick_questions(office: Office, seed: int, difficulty: Difficulty) -> list[Question]:
    """The questions asked about an office: as many of each number of hops, of every kind."""
    chance = random.Random(f"questions {office.name} {seed} {difficulty}")
    hops = SIZES[difficulty].hops
    each = QUESTIONS_PER_OFFICE // len(hops)
    picked = []
    for number in hops:
        kinds: list[list[Question]] = [office._wages(number), office._payments(number)]
        if number == 1:
            kinds.append(office._shelves())
        for position in range(each):
            kind = kinds[position % len(kinds)]
            picked.append(kind.pop(chance.randrange(len(kind))))
    chance.shuffle(picked)
    return picked


def _entries(chance: random.Random, count: int) -> dict[tuple[str, str], int]:
    """Payments in the order of their dates, no two to one firm on one day."""
    chosen = sorted(chance.sample(range(len(DATES) * len(PAID)), count))
    return {(DATES[index // len(PAID)], PAID[index % len(PAID)]): chance.randint(100, 9999) for index in chosen}


def _note(person: Person) -> str:
    return (
        f"Name: {person.name}\nWage: {person.wage} crowns a year\nKeeps: the {person.goods} ledger\n"
        f"Deputy: {person.deputy}\n"
    )


def _letter(letter: Letter) -> str:
    return (
        f"Letter {letter.number}\nWritten by: {letter.writer}\n\n"
        f"You asked after the {letter.other_thing}: I have not seen it for weeks.\n"
        f"The {letter.thing} is on shelf {letter.shelf}, where it shall stay.\n"
    )


def _ledger(entries: dict[tuple[str, str], int]) -> str:
    lines = [f"{date},{firm},{amount}" for (date, firm), amount in entries.items()]
    return "\n".join(["date,paid to,crowns", *lines]) + "\n"


def _slug(name: str) -> str:
    return name.lower().replace(" ", "-")
