"""Families of terminal tasks about files and programs of a system: config, git, permissions, program."""

from __future__ import annotations

import json
from random import Random

from whet.authoring.terminal.draft import NAMES, WORDS, Draft, lines, sentence, text

PORTS = range(1024, 10000)


def config(rng: Random, level: int) -> Draft:
    port, before, *others = map(str, rng.sample(PORTS, 5))
    keys = rng.sample(WORDS, 6)
    if level == 1:
        settings = {key.upper(): rng.choice(WORDS) for key in keys[: rng.randint(2, 4)]}
        settings[keys[5].upper()] = before
        name = keys[5].upper()
        settings = dict(rng.sample(list(settings.items()), len(settings)))
        files = {"app.env": lines([f"{key}={value}" for key, value in settings.items()])}
        check = {"check": "settings", "path": "app.env", "settings": {**settings, name: port}}
        ask = f"Change {name} to {port} in app.env and leave the rest as it is."
        shortcut = f"echo {name}={port} >> app.env"
        return Draft(ask, f"sed -i s/^{name}=.*/{name}={port}/ app.env", [check], shortcut, files)
    if level == 2:
        sections = keys[:3]
        values = {
            section: {"port": old, "host": rng.choice(WORDS)} for section, old in zip(sections, others, strict=True)
        }
        chosen = rng.choice(sections)
        rows = [row for one in sections for row in (f"[{one}]", *(f"{k} = {v}" for k, v in values[one].items()), "")]
        settings = {f"{one}.{key}": value for one in sections for key, value in values[one].items()}
        check = {"check": "settings", "path": "server.ini", "settings": {**settings, f"{chosen}.port": port}}
        ask = f"Change the port of the section {chosen} in server.ini to {port}, and leave the other sections alone."
        change = f"s/^port = .*/port = {port}/"
        solution, shortcut = f"sed -i '/^.{chosen}]/,/^$/ {change}' server.ini", f"sed -i '{change}' server.ini"
        return Draft(ask, solution, [check], shortcut, {"server.ini": lines(rows)})
    limits = {key: rng.randint(1, 99) for key in keys[1:3]}
    repaired = {"port": int(port), "name": keys[0], "limits": limits}
    broken = json.dumps({**repaired, "port": int(before)}, indent=2)
    broken = broken.replace("\n  }\n}", f",\n  }},\n  // {sentence(rng, 3)}\n}}\n")
    check = {"check": "json", "path": "config.json", "value": repaired}
    ask = f"config.json is not valid JSON. Repair it, keep all its values but the port, and set that to {port}."
    repair = "sed -i '/^ *\\/\\//d' config.json"
    solution = f"{repair}\nsed -i -z -E 's/,(\\s*\\}})/\\1/g; s/{before}/{port}/' config.json"
    return Draft(ask, solution, [check], f"sed -i s/{before}/{port}/ config.json\n{repair}", {"config.json": broken})


COMMITS = "git init -q -b main . && git config user.name Dev && git config user.email dev@example.com"
COMMIT = "git add -A && git commit -q -m {}"


def git(rng: Random, level: int) -> Draft:
    name, other, message, branch, word = rng.sample(WORDS, 5)
    file, begin = f"{name}.txt", f"{COMMITS} && {COMMIT.format('start')}"
    files = {file: lines([sentence(rng, 4) for _ in range(3)]), f"{other}.txt": f"{sentence(rng, 5)}\n"}
    main = {"check": "git", "branch": "main", "head": "main"}
    if level == 1:
        changed = {**files, file: f"{files[file]}{word}\n"}
        ask = f"Commit the change of {file} in the git repository here, with the message {message}."
        check = {**main, "files": changed, "subject": message}
        setup = f"{begin} && echo {word} >> {file}"
        return Draft(ask, f"git commit -q -a -m {message}", [check], "git add -A", files, setup)
    if level == 2:
        ask = f"Make a branch {branch} in the git repository here, and commit there a new file {message}.txt "
        ask += f"with the word {word} in it. Stay on that branch, and leave main as it is."
        made = f"echo {word} > {message}.txt\n{COMMIT.format(word)}"
        checks = [{**main, "head": branch, "files": files}]
        checks += [{**checks[0], "branch": branch, "files": {**files, f"{message}.txt": word}}]
        shortcut = f"{made}\ngit checkout -q -b {branch}"
        return Draft(ask, f"git checkout -q -b {branch}\n{made}", checks, shortcut, files, begin)
    second = f"{files[file]}{word}\n"
    setup = f"{begin} && echo {word} >> {file} && {COMMIT.format('more')} && git rm -q {file} && "
    setup += f"git commit -q -m less && echo {branch} >> {other}.txt && {COMMIT.format('last')}"
    ask = f"{file} was deleted in a commit of the git repository here. Bring it back as it was then, and commit it."
    check = {**main, "files": {file: second, f"{other}.txt": f"{files[f'{other}.txt']}{branch}\n"}}
    solution = f'git checkout -q "$(git rev-list -n 1 HEAD -- {file})^" -- {file}\ngit commit -q -m back'
    shortcut = f"git checkout -q HEAD~3 -- {file}\ngit commit -q -m back"
    return Draft(ask, solution, [check], shortcut, files, setup)


MODES = ["400", "440", "444", "500", "550", "600", "640", "700", "750"]


def permissions(rng: Random, level: int) -> Draft:
    names = rng.sample(WORDS, 8)
    mode = rng.choice(MODES)
    if level == 1:
        file = f"{names[0]}.txt"
        check = {"check": "mode", "path": file, "mode": mode}
        ask, files = f"Give the file {file} the mode {mode}.", {file: sentence(rng, 5)}
        return Draft(ask, f"chmod {mode} {file}", [check], f"chmod 777 {file}", files, f"chmod 644 {file}")
    if level == 2:
        files = {f"bin/{name}.{'sh' if number < 4 else 'txt'}": sentence(rng, 4) for number, name in enumerate(names)}
        modes = {path: mode if path.endswith(".sh") else "644" for path in files}
        ask = f"Give the files of bin that end in .sh the mode {mode}, and leave the others as they are."
        solution, shortcut, setup = f"chmod {mode} bin/*.sh", f"chmod {mode} bin/*", "chmod 644 bin/*"
    else:
        folders = [f"site/{names[0]}", f"site/{names[0]}/{names[1]}", f"site/{names[2]}"]
        files = {f"{rng.choice(folders)}/{name}.html": sentence(rng, 4) for name in names[3:]}
        files |= {f"{folder}/index.html": sentence(rng, 4) for folder in folders}
        modes = dict.fromkeys(files, mode) | dict.fromkeys(folders, "750")
        ask = f"Give all folders below site the mode 750, and all files below site the mode {mode}."
        solution = f"find site -type f -exec chmod {mode} {{}} +\nfind site -mindepth 1 -type d -exec chmod 750 {{}} +"
        shortcut, setup = f"chmod {mode} site/*/*.html\nchmod 750 site/*", "chmod -R 755 site"
    checks = [{"check": "mode", "path": path, "mode": wanted} for path, wanted in sorted(modes.items())]
    return Draft(ask, solution, checks, shortcut, files, setup)


TOOL = """import sys

number = int(sys.argv[1])
for _ in range({times}):
    number = (number * {factor} + {term}) % {modulus}
print(number)
"""
TOTAL = """numbers = [int(line) for line in open("numbers.txt")]
total = 0
for number in numbers{some}:
    total {add}
print(total)
"""


def program(rng: Random, level: int) -> Draft:
    if level == 1:
        number, factor, term, times = (rng.randint(low, high) for low, high in ((10, 99), (3, 99), (1, 99), (2, 9)))
        modulus, result = rng.randint(500, 9999), number
        for _ in range(times):
            result = (result * factor + term) % modulus
        files = {"tool.py": TOOL.format(times=times, factor=factor, term=term, modulus=modulus)}
        ask = f"Run the Python program tool.py with the argument {number}. Write what it prints into out.txt."
        shortcut = f"echo {number} > out.txt"
        return Draft(ask, f"python3 tool.py {number} > out.txt", [text("out.txt", str(result))], shortcut, files)
    if level == 2:
        values = [3, *(rng.choice([-1, 1]) * rng.randint(1, 99) for _ in range(rng.randint(5, 20))), -7, 5]
        values[0] += sum(values) == 5  # what the last fault prints
        some, add = rng.choice(
            [("[:-1]", "+= number"), ("[1:-1]", "+= number"), ("", "+= abs(number)"), ("", "= number")]
        )
        files = {"numbers.txt": lines(list(map(str, values))), "total.py": TOTAL.format(some=some, add=add)}
        ask = "total.py should print the sum of the numbers in numbers.txt, but it does not. Repair it, and write "
        run = "python3 total.py > out.txt"
        repair = "sed -i 's/in numbers.*:/in numbers:/; s/total .*number.*/total += number/' total.py"
        checks = [text("out.txt", str(sum(values)))]
        return Draft(f"{ask}what it prints into out.txt.", f"{repair}\n{run}", checks, run, files)
    old, new = rng.choice(".-/ "), rng.choice("_:+=")
    order = rng.choice(["321", "213", "231"])
    name = rng.choice(NAMES)
    cases = []
    for _ in range(6):
        days = [(rng.randint(1, 28), rng.randint(1, 12), rng.randint(1900, 2099)) for _ in range(2)]
        parts = [(f"{day:02}", f"{month:02}", f"{year}") for day, month, year in days]
        turned = [new.join(part[int(index) - 1] for index in order) for part in parts]
        first, second = (f"{name} {{}} and {{}}.", f"{rng.choice(WORDS)} {{}}, {{}}")
        dates = [old.join(part) for part in parts]
        cases += [[first.format(*dates), first.format(*turned)], [second.format(*dates), second.format(*dates)]]
    example = new.join(["24", "12", "1999"][int(index) - 1] for index in order)
    ask = f"Write a script script.sed, for 'sed -E -f script.sed', that in each line with the name {name} writes all "
    ask += f"dates such as 24{old}12{old}1999 as {example}, and changes no other line."
    groups = new.join(f"\\{index}" for index in order)
    script = f"/{name}/s|([0-9]{{2}})[{old}]([0-9]{{2}})[{old}]([0-9]{{4}})|{groups}|"
    check = {"check": "sed", "path": "script.sed", "cases": cases}
    files = {"sample.txt": lines([before for before, _ in cases[:2]])}
    return Draft(ask, f"echo '{script}g' > script.sed", [check], f"echo '{script}' > script.sed", files)
