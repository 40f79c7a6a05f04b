"""An invented world, drawn from a seed: who lived where and when, and made what. Everything agrees with everything.

People are born in cities that were there already, make things while they are alive and grown up, are taught by people
who were older; a capital lies in its country, and a river rises in the country whose cities it passes.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from .names import Namer, Split, slug
from .relations import OF_KIND

FIRST_BIRTH, LAST_BIRTH, TODAY = 1500, 1930, 2000
GROWN_UP = 22
SHARES = {
    "city": 0.11,
    "river": 0.03,
    "mountain": 0.04,
    "university": 0.03,
    "museum": 0.03,
    "press": 0.02,
    "bridge": 0.03,
    "novel": 0.13,
    "opera": 0.05,
    "painting": 0.06,
    "comet": 0.03,
    "battle": 0.03,
}
"""Of all articles; what is left are people, and a few countries and seas."""
OCCUPATIONS = {
    "novelist": 5,
    "composer": 3,
    "painter": 3,
    "architect": 3,
    "builder": 2,
    "astronomer": 2,
    "general": 2,
    "mountaineer": 2,
    "politician": 3,
    "scholar": 3,
}


@dataclass(eq=False)
class Thing:
    """Something with an article."""

    kind: str
    name: str
    label: str
    """How sentences speak of it: `the Battle of Orn`."""
    aliases: tuple[str, ...] = ()
    occupation: str = ""
    facts: dict[str, Value] = field(default_factory=dict)
    """By relation, in the order of `relations.py`."""

    @property
    def page_id(self) -> str:
        return slug(self.name)

    def year(self, relation: str) -> int:
        value = self.facts[relation]
        assert isinstance(value, int)
        return value

    def thing(self, relation: str) -> Thing:
        value = self.facts[relation]
        assert isinstance(value, Thing)
        return value


Value = Thing | int | str


@dataclass(frozen=True)
class World:
    things: tuple[Thing, ...]

    def of_kind(self, kind: str) -> list[Thing]:
        return [thing for thing in self.things if thing.kind == kind]


def make_world(split: Split, seed: int, articles: int) -> World:
    """About `articles` things (at least 300), whose names are all of one split."""
    return _Maker(split, seed, articles).make()


class _Maker:
    def __init__(self, split: Split, seed: int, articles: int) -> None:
        self.rng = random.Random(f"world {split} {seed}")
        self.name = Namer(self.rng, split)
        self.sizes = {kind: max(3, round(share * articles)) for kind, share in SHARES.items()}
        self.sizes["country"] = max(5, articles // 160)
        self.sizes["sea"] = 5
        self.sizes["person"] = articles - sum(self.sizes.values())
        self.all: dict[str, list[Thing]] = {kind: [] for kind in OF_KIND}
        self.by_occupation: dict[str, list[Thing]] = {occupation: [] for occupation in OCCUPATIONS}

    def make(self) -> World:
        self._lands()
        self._people()
        self._offices()
        self._institutions()
        self._studies()
        self._works()
        things = [thing for kind in self.all for thing in self.all[kind]]
        for thing in things:  # facts in the order of the relations, however they came about
            thing.facts = {name: thing.facts[name] for name in OF_KIND[thing.kind] if name in thing.facts}
        return World(tuple(things))

    def _add(self, kind: str, name: str, label: str, *aliases: str, **facts: Value) -> Thing:
        thing = Thing(kind, name, label, aliases, facts=facts)
        self.all[kind].append(thing)
        return thing

    def _lands(self) -> None:
        rng, name = self.rng, self.name
        seas = []
        for _ in range(self.sizes["sea"]):
            title = f"Sea of {name.place()}"
            seas.append(self._add("sea", title, f"the {title}", depth=rng.randint(400, 7000)))
        for _ in range(self.sizes["country"]):
            title = name.place()
            self._add("country", title, title, f"Republic of {title}", currency=name.place().lower())
        for country in self._shared_out("mountain"):
            title = f"Mount {name.place()}"
            self._add("mountain", title, title, title[6:], country=country, height=rng.randint(900, 6900))
        for country in self._shared_out("river"):
            bare = name.place()
            here = [mountain for mountain in self.all["mountain"] if mountain.thing("country") is country]
            self._add(
                "river",
                f"River {bare}",
                f"the River {bare}",
                bare,
                f"{bare} River",
                source=rng.choice(here),
                mouth=rng.choice(seas),
                length=rng.randint(60, 2900),
            )
        for country in self._shared_out("city"):
            rivers = [river for river in self.all["river"] if river.thing("source").thing("country") is country]
            title = name.place()
            founded, population = rng.randint(700, FIRST_BIRTH - 1), rng.randint(4_000, 2_000_000)
            city = self._add("city", title, title, f"City of {title}", founded=founded, population=population)
            city.facts.update(country=country, river=rng.choice(rivers))

    def _shared_out(self, kind: str) -> Iterable[Thing]:
        """A country for each thing of a kind, every country first in turn."""
        countries = self.all["country"]
        size = max(self.sizes[kind], len(countries))
        return [*countries, *self.rng.choices(countries, k=size - len(countries))]

    def _people(self) -> None:
        rng = self.rng
        occupations = rng.choices(list(OCCUPATIONS), weights=list(OCCUPATIONS.values()), k=self.sizes["person"])
        # A few of each, so that small worlds have every occupation.
        for index, occupation in enumerate(list(OCCUPATIONS) * 4):
            occupations[index] = occupation
        for occupation in occupations:
            name = self.name.person()
            born = rng.randint(FIRST_BIRTH, LAST_BIRTH)
            person = self._add("person", name, name, born=born, died=min(born + rng.randint(48, 92), TODAY))
            person.occupation = occupation
            self.by_occupation[occupation].append(person)
            person.facts["birthplace"] = rng.choice(self.all["city"])
        self._teachers()
        self._couples()

    def _teachers(self) -> None:
        by_birth = sorted(self.all["person"], key=lambda person: person.year("born"))
        for pupil in by_birth:
            if self.rng.random() < 0.5:
                able = [
                    other
                    for other in self.rng.sample(by_birth, min(40, len(by_birth)))
                    if 15 <= pupil.year("born") - other.year("born") <= 45
                    and other.year("died") >= pupil.year("born") + 16
                ]
                if able:
                    pupil.facts["teacher"] = able[0]

    def _couples(self) -> None:
        by_birth = sorted(self.all["person"], key=lambda person: person.year("born"))
        for one, other in zip(by_birth[::2], by_birth[1::2], strict=False):
            teachers = (one.facts.get("teacher"), other.facts.get("teacher"))
            close = other.year("born") - one.year("born") <= 12
            if close and one not in teachers and other not in teachers and self.rng.random() < 0.5:
                one.facts["spouse"], other.facts["spouse"] = other, one

    def _doer(self, *occupations: str) -> tuple[Thing, int]:
        """A person with an occupation, and a year of their adult life."""
        people = self.by_occupation[self.rng.choice(occupations)]
        person = self.rng.choice(people)
        return person, self._year_of(person)

    def _year_of(self, person: Thing) -> int:
        return self.rng.randint(person.year("born") + GROWN_UP, person.year("died"))

    def _offices(self) -> None:
        """Who was first in what: no person twice in the same."""
        rng = self.rng
        cities = self.all["city"]
        for country in self.all["country"]:
            president, year = self._doer("politician", "general")
            capital = rng.choice([city for city in cities if city.thing("country") is country])
            country.facts.update(capital=capital, first_president=president, independence=year)
        for city in cities:
            if rng.random() < 0.6:
                city.facts["first_mayor"] = self._doer("politician", "scholar")[0]
        for mountain in self.all["mountain"]:
            climber, year = self._doer("mountaineer")
            mountain.facts.update(climbed_by=climber, climbed=year)

    def _institutions(self) -> None:
        rng, name, sizes = self.rng, self.name, self.sizes
        cities = self.all["city"]
        for _ in range(sizes["university"]):
            founder, year = self._doer("scholar", "astronomer", "politician")
            bare = name.place()
            title = f"{bare} University"
            university = self._add("university", title, title, f"University of {bare}", founder=founder, founded=year)
            university.facts["city"] = rng.choice(cities)
        for _ in range(sizes["museum"]):
            architect, year = self._doer("architect")
            title = f"{name.place()} Museum"
            self._add("museum", title, f"the {title}", city=rng.choice(cities), architect=architect, opened=year)
        for _ in range(sizes["press"]):
            founder, year = self._doer("novelist", "scholar")
            title = f"{name.place()} Press"
            self._add("press", title, title, city=rng.choice(cities), founder=founder, founded=year)
        for _ in range(sizes["bridge"]):
            builder, year = self._doer("builder", "architect")
            title, river = f"{name.place()} Bridge", rng.choice(self.all["river"])
            self._add("bridge", title, f"the {title}", river=river, builder=builder, opened=year)

    def _studies(self) -> None:
        for person in self.all["person"]:
            there = [place for place in self.all["university"] if place.year("founded") <= person.year("born") + 17]
            if there and self.rng.random() < 0.6:
                person.facts["alma_mater"] = self.rng.choice(there)

    def _works(self) -> None:
        rng, name, sizes = self.rng, self.name, self.sizes
        presses = self.all["press"]
        for _ in range(sizes["novel"]):
            author, year = self._doer("novelist")
            title = name.work()
            novel = self._add("novel", f"{title} (novel)", f'the novel "{title}"', title, author=author, published=year)
            there = [press for press in presses if press.year("founded") <= year]
            if there:
                novel.facts["press"] = rng.choice(there)
        for _ in range(sizes["opera"]):
            composer, year = self._doer("composer")
            title = name.work()
            opera = self._add("opera", f"{title} (opera)", f'the opera "{title}"', title, composer=composer)
            opera.facts.update(premiere=year, premiere_city=rng.choice(self.all["city"]))
        for _ in range(sizes["painting"]):
            painter, year = self._doer("painter")
            title = name.work()
            painting = self._add("painting", f"{title} (painting)", f'the painting "{title}"', title, painter=painter)
            painting.facts.update(painted=year, museum=rng.choice(self.all["museum"]))
        for _ in range(sizes["comet"]):
            discoverer, year = self._doer("astronomer")
            title = f"Comet {name.place()}"
            self._add("comet", title, title, discoverer=discoverer, discovered=year)
        for _ in range(sizes["battle"]):
            victor, year = self._doer("general")
            title = f"Battle of {name.place()}"
            battle = self._add("battle", title, f"the {title}", fought=year, victor=victor)
            battle.facts["scene"] = rng.choice(self.all["city"])
