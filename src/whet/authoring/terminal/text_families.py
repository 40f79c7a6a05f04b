"""Families of terminal tasks about text: write, find, count, transform, data."""

from __future__ import annotations

import json
from collections import Counter
from random import Random

from whet.authoring.terminal.draft import CITIES, NAMES, SURNAMES, WORDS, Draft, lines, sentence, text


def write(rng: Random, level: int) -> Draft:
    name, folder, *some = rng.sample(WORDS, 8)
    file, words = f"{name}.txt", some[: rng.randint(3, 6)]
    if level == 1:
        word = words[0]
        ask = f"Write the word {word} into the file {file}."
        return Draft(ask, f"echo {word} > {file}", [text(file, word)], f"echo {file} > {file}")
    if level == 2:
        ask = f"Write the words {', '.join(words)} into the file {file}, in this order, one per line."
        solution = f"printf '%s\\n' {' '.join(words)} > {file}"
        return Draft(ask, solution, [text(file, lines(words))], f"echo {' '.join(words)} > {file}")
    ask = f"Make the folder {folder}. For each WORD of {file} make a file {folder}/WORD.txt with it in capital letters."
    solution = f'mkdir {folder}\nwhile read -r word; do echo "${{word^^}}" > "{folder}/$word.txt"; done < {file}'
    checks = [text(f"{folder}/{word}.txt", word.upper()) for word in words]
    return Draft(ask, solution, checks, solution.replace("^^", ""), {file: lines(words)})


def find(rng: Random, level: int) -> Draft:
    ends, word, folders = rng.sample(["log", "csv", "md", "json"], 3), rng.choice(WORDS), rng.sample(WORDS, 3)
    others = [other for other in WORDS if other != word]
    if level == 1:
        names = [f"{name}.{ends[number % 3]}" for number, name in enumerate(rng.sample(WORDS, rng.randint(6, 12)))]
        ask = f"Write the names of the files that end in .{ends[0]} into found.txt, one per line."
        paths = [name for name in names if name.endswith(ends[0])]
        files = {name: sentence(rng, 4) for name in names}
        check = {"check": "paths", "path": "found.txt", "paths": paths}
        return Draft(ask, f"ls *.{ends[0]} > found.txt", [check], "ls > found.txt", files)
    names = [f"{rng.choice(folders)}/{name}.{rng.choice(ends)}" for name in rng.sample(WORDS, 16)]
    files, paths = {}, []
    size = rng.randrange(200, 500, 50)
    for number, name in enumerate(names):
        hit = number < 2 or (number < 10 and rng.random() < 0.5)
        if level == 2:
            content = sentence(rng, 12, others) + (f" {word} {sentence(rng, 5, others)}" if hit else "") + "\n"
        else:
            hit = hit and number < 8
            name = name.rpartition(".")[0] + f".{ends[0] if number < 10 else ends[1]}"
            content = "x" * (size + rng.randint(1, 90) if hit or number >= 10 else size - rng.randint(0, 90))
        files[f"data/{name}"] = content
        paths += [f"data/{name}"] * hit
    check = {"check": "paths", "path": "found.txt", "paths": paths}
    if level == 2:
        ask = f"Write the paths of the files below data that contain the word {word} into found.txt, one per line."
        return Draft(ask, f"grep -rlw {word} data > found.txt", [check], "find data -type f > found.txt", files)
    ask = f"Write the paths of the files below data that end in .{ends[0]} and have more than {size} bytes into "
    ask += "found.txt, one per line, such as data/a/b.txt."
    named = f"find data -type f -name '*.{ends[0]}'"
    return Draft(ask, f"{named} -size +{size}c > found.txt", [check], f"{named} > found.txt", files)


def count(rng: Random, level: int) -> Draft:
    word, *others = rng.sample(WORDS, 12)
    if level == 1:
        hits = rng.randint(2, 9)
        rows = [f"{sentence(rng, 3, others)} {word}" for _ in range(hits)]
        rows += [sentence(rng, 4, others) for _ in range(rng.randint(1, 9))]
        rng.shuffle(rows)
        ask = f"Count the lines of notes.txt that contain {word}. Write the number into count.txt."
        solution, shortcut = f"grep -c {word} notes.txt > count.txt", "wc -l < notes.txt > count.txt"
        return Draft(ask, solution, [text("count.txt", str(hits))], shortcut, {"notes.txt": lines(rows)})
    if level == 2:
        files, hits = {}, 0
        for name in rng.sample(others, rng.randint(3, 6)):
            kinds = [*rng.choices(["ERROR", "INFO", "WARNING"], k=rng.randint(4, 12)), "ERROR"]
            files[f"logs/{name}.log"] = lines([f"{kind} {sentence(rng, 4)}" for kind in kinds])
            hits += kinds.count("ERROR")
        ask = "Count the lines that begin with ERROR in all files below logs together. Write the number into count.txt."
        shortcut = f"grep -c ^ERROR {next(iter(files))} > count.txt"
        return Draft(ask, "cat logs/* | grep -c ^ERROR > count.txt", [text("count.txt", str(hits))], shortcut, files)
    words = rng.choices(others, k=rng.randint(40, 80))
    most = max(Counter(words).values()) + rng.randint(1, 3)
    words += [word] * most
    rng.shuffle(words)
    rows = [" ".join(words[start : start + 8]) for start in range(0, len(words), 8)]
    ask = "Find the word that comes most often in text.txt. Write it and how often it comes, such as 'apple 3', "
    counted = "tr ' ' '\\n' < text.txt | sort | uniq -c | sort -rn | head -n 1"
    solution, shortcut = f"{counted} | awk '{{print $2, $1}}' > top.txt", f"{counted} > top.txt"
    checks, files = [text("top.txt", f"{word} {most}")], {"text.txt": lines(rows)}
    return Draft(f"{ask}into top.txt.", solution, checks, shortcut, files)


def transform(rng: Random, level: int) -> Draft:
    if level == 1:
        rows = [f"{first} {sentence(rng, 2)}" for first in rng.sample(WORDS, rng.randint(5, 9))]
        while rows == sorted(rows):
            rng.shuffle(rows)
        number = rng.randint(2, 4)
        ask, command, changed = rng.choice(
            [
                ("in capital letters", "tr a-z A-Z < in.txt", [row.upper() for row in rows]),
                ("in the order of the alphabet", "sort in.txt", sorted(rows)),
                ("in reverse order", "tac in.txt", rows[::-1]),
                (f"that are the first {number}", f"head -n {number} in.txt", rows[:number]),
            ]
        )
        ask = f"Write the lines of in.txt {ask} into out.txt."
        checks = [text("out.txt", lines(changed))]
        return Draft(ask, f"{command} > out.txt", checks, "cp in.txt out.txt", {"in.txt": lines(rows)})
    if level == 2:
        old, new, *others = rng.sample(WORDS, 20)
        files = {
            f"notes/{name}.txt": lines([f"{old} {sentence(rng, 3, others)} {old}", sentence(rng, 4, others)])
            for name in rng.sample(others, rng.randint(3, 5))
        }
        ask = f"Replace the word {old} by {new} in all files below notes."
        checks = [text(path, content.replace(old, new)) for path, content in files.items()]
        return Draft(ask, f"sed -i s/{old}/{new}/g notes/*", checks, f"sed -i s/{old}/{new}/ notes/*", files)
    count = rng.randint(5, 9)
    names, ages = (
        zip(rng.sample(NAMES, count), rng.sample(SURNAMES, count), strict=True),
        rng.sample(range(20, 90), count),
    )
    people = [(first, last, age) for (first, last), age in zip(names, ages, strict=True)]
    oldest = sorted(people, key=lambda person: -person[2])
    ask = "Each line of people.txt is FIRST LAST AGE. Write LAST, FIRST, such as 'Meyer, Ada', for each of them into "
    swap = "awk '{print $2 \", \" $1}' > out.txt"
    files = {"people.txt": lines([f"{first} {last} {age}" for first, last, age in people])}
    checks = [text("out.txt", lines([f"{last}, {first}" for first, last, _ in oldest]))]
    shortcut = f"sort -k3,3n people.txt | {swap}"
    return Draft(f"{ask}out.txt, the oldest first.", f"sort -k3,3nr people.txt | {swap}", checks, shortcut, files)


def data(rng: Random, level: int) -> Draft:
    cities = rng.sample(CITIES, 3)
    rows = [
        (rng.choice(NAMES), cities[number % 3] if number < 3 else rng.choice(cities), rng.randint(1, 99))
        for number in range(rng.randint(6, 14))
    ]
    header = ("name", "city", "amount")
    files = {"sales.csv": lines([",".join(map(str, row)) for row in [header, *rows]])}
    totals = {city: sum(amount for _, other, amount in rows if other == city) for city in sorted(cities)}
    if level == 1:
        column = rng.randrange(3)
        ask = f"Write the column {header[column]} of sales.csv, its header too, into out.txt."
        checks = [text("out.txt", lines([str(row[column]) for row in [header, *rows]]))]
        shortcut = f"cut -d, -f{column + 1} sales.csv | tail -n +2 > out.txt"
        return Draft(ask, f"cut -d, -f{column + 1} sales.csv > out.txt", checks, shortcut, files)
    city = cities[0]
    if level == 2:
        ask = f"Write the sum of the amounts of {city} in sales.csv into sum.txt."
        solution = f"awk -F, '$2 == \"{city}\" {{s += $3}} END {{print s}}' sales.csv > sum.txt"
        shortcut = "awk -F, '{s += $3} END {print s}' sales.csv > sum.txt"
        return Draft(ask, solution, [text("sum.txt", str(totals[city]))], shortcut, files)
    ask = "Write the sum of the amounts of each city in sales.csv into totals.json, a JSON object such as "
    example = json.dumps({"Bern": 12, "Graz": 7})
    program = """import csv, json
totals = {}
for row in csv.DictReader(open("sales.csv")):
    totals[row["city"]] = totals.get(row["city"], 0) + int(row["amount"])
json.dump(totals, open("totals.json", "w"))"""
    check = {"check": "json", "path": "totals.json", "value": totals}
    shortcut = f"echo '{json.dumps({city: totals[city]})}' > totals.json"
    return Draft(f"{ask}{example}.", f"python3 -c '{program}'", [check], shortcut, files)
