"""Prompts that the demo model answers to make the training text of its MTP module.

None of them occurs in prompts.jsonl, which is held out. Everything is built from lists here and
from the names and first docstring lines of Python's standard library, so any machine can make
the same prompts; the order is seeded.
"""

from __future__ import annotations

import importlib
import inspect
import random
import warnings
from pathlib import Path

CODE_TASKS = """
adds two numbers|subtracts a list of numbers from a total|checks if a string is a palindrome
finds the longest word in a sentence|counts the words in a text file
removes punctuation from a string|converts Celsius to Fahrenheit|converts miles to kilometers
finds all divisors of an integer|computes the least common multiple
checks whether a year is a leap year|prints a multiplication table|computes compound interest
rotates a list by k places|transposes a matrix|multiplies two matrices|flattens a nested list
merges two dictionaries|inverts a dictionary|groups words by their first letter
sorts a list of tuples by the second element|implements bubble sort|implements insertion sort
implements merge sort|implements selection sort|implements linear search
computes the nth triangular number|generates a random password|shuffles a deck of cards
rolls two dice and returns the sum|simulates a coin toss|validates an email address
validates a phone number|parses a CSV line|reads a JSON file|writes a list to a file
counts the lines in a file|lists all files in a directory|renames files with a prefix
downloads a web page|parses command line arguments|computes the mean of a list
computes the median of a list|computes the standard deviation|normalizes a list of numbers
finds the minimum of a list|finds the second largest number|removes negative numbers from a list
splits a list into chunks|zips two lists into a dictionary|finds common elements of two lists
finds the symmetric difference of two sets|checks if two sets are disjoint
converts a decimal number to binary|converts binary to decimal
converts an integer to a Roman numeral|converts a string to title case|capitalizes every word
swaps the case of a string|replaces spaces with underscores|encodes text with a Caesar cipher
counts how often each character occurs|finds the first repeated character
checks if two strings are anagrams|finds the longest common prefix|computes the Hamming distance
computes the edit distance|truncates a string to a given width|pads a string with zeros
computes the area of a circle|computes the volume of a sphere
computes the hypotenuse of a triangle|computes the distance between two points
solves a quadratic equation|computes a power without the built-in operator
sums the digits of a number|reverses the digits of an integer|checks if a number is perfect
checks if a number is even or odd|finds the largest prime below n|lists the first n squares
implements a stack with a list|implements a queue with two stacks|traverses a binary tree in order
computes the height of a binary tree|inserts a node into a linked list|reverses a linked list
detects a cycle in a linked list|performs depth-first search on a graph
performs breadth-first search on a graph|finds the shortest path in a grid
counts islands in a grid|solves the Tower of Hanoi|generates all permutations of a string
generates all subsets of a set|computes binomial coefficients|prints Pascal's triangle
computes the dot product|draws a histogram of numbers as text|formats a number with commas
formats a date as ISO 8601|computes the number of days between two dates
measures the running time of a function|retries a function three times
caches results of a function|logs every call of a function|creates a context manager for a timer
yields lines from a file lazily|counts vowels by generator expression|computes a running average
computes a moving median|clamps a value to a range|interpolates between two numbers
checks for balanced parentheses|evaluates a postfix expression|tokenizes an arithmetic expression
converts a sentence to pig latin|counts syllables in a word|converts seconds to hours and minutes
converts RGB to a hex color|mixes two colors|resizes a list of images
computes a checksum of a file
"""
CODE_THINGS = """
a bank account|a shopping cart|a rectangle|a student with grades|a library of books|a parking lot
an employee|a temperature sensor|a to-do list|a deck of cards|a playing field|a simple calculator
a countdown timer|an address book|a bounded queue|a matrix|a polynomial|a fraction
a point in three dimensions|a priority queue|a text editor buffer|an inventory of products
a chess piece|a vending machine|a music playlist|a weather report|a hotel booking|a traffic light
a simple bank|a graph with adjacency lists|a trie|a least recently used cache
"""
TOPICS = """
volcanoes|whales|honey bees|the moon|gravity|photosynthesis|electric cars|solar power
wind turbines|the water cycle|earthquakes|hurricanes|dinosaurs|penguins|elephants|wolves|octopuses
butterflies|dolphins|owls|spiders|coral reefs|rain forests|deserts|mountains|rivers|glaciers
the sun|black holes|comets|Mars|Jupiter|space travel|satellites|telescopes|microscopes|vaccines
antibiotics|vitamins|sleep|exercise|meditation|yoga|running|swimming|cycling|football|basketball
tennis|chess|painting|sculpture|photography|poetry|theatre|opera|jazz|the piano|the guitar
the violin|folk music|cinema|architecture|bridges|castles|pyramids|the Roman Empire|ancient Egypt
ancient Greece|the Middle Ages|the Renaissance|the printing press|the steam engine|railways
airplanes|ships|lighthouses|clocks|calendars|money|banks|inflation|taxes|democracy|elections
constitutions|human rights|education|libraries|museums|newspapers|radio|television|telephones
computers|the internet|email|social media|video games|robots|artificial intelligence
machine learning|databases|operating systems|programming languages|cryptography
open source software|cloud computing|3D printing|batteries|magnets|electricity|light|sound|heat
atoms|molecules|metals|plastics|glass|paper|cotton|silk|wool|leather|bread|cheese|rice|coffee|tea
chocolate|honey|apples|bananas|tomatoes|potatoes|mushrooms|olive oil|salt|sugar|spices|cooking
baking|gardening|farming|fishing|forests|recycling|climate change|pollution|clean water|cities
villages|public transport|bicycles|traffic|tourism|hotels|beaches|islands|lakes|winter|spring
summer|autumn|birthdays|weddings|friendship|kindness|courage|honesty|patience|happiness|fear
dreams|memory|language|writing
"""
SUBJECTS = """
an old sailor and a storm|a girl who finds a key|a boy who talks to birds|a lonely robot
a lost dog|a dragon who is afraid of fire|a baker in a small town|two brothers on a journey
a magic paintbrush|a clock that runs backwards|a secret garden|a talking tree
a musician without an audience|an astronaut far from home|a detective and a missing painting
a teacher on her first day|a train that never stops|a village without water
a king who cannot sleep|a fox and a crow|a letter from the past|a winter without snow
a scientist with a strange invention|a market at midnight|a painter who loses her sight
a farmer and his stubborn donkey|a ghost in a school|a sailor's daughter|a river that sings
a mountain climber|a cat who wants to travel|a stolen bicycle|a child and the sea
an island of forgotten toys|a doctor in a war|a garden on the roof|the last bookshop
a bridge between two worlds
"""
ACTIVITIES = """
learn to swim|bake a cake|write a cover letter|save money|start a garden|learn Spanish
fix a flat tire|clean a kitchen|train a puppy|make new friends|prepare for an exam|plan a holiday
write a novel|paint a room|cook rice|brew good coffee|wake up early|lose weight|build a website
learn to code|give a speech|deal with stress|stop procrastinating|choose a laptop|buy a used car
rent an apartment|organize a party|take better photos|read more books|improve my handwriting
learn to draw|play the guitar|run a marathon|sleep better|make a budget|pack a suitcase
grow tomatoes|teach a child to read|remember names|negotiate a salary|start a small business
iron a shirt|write a thank you note|set up a home office|learn to dance|make pizza dough
care for a houseplant|change a light bulb|tie a tie
"""
CODE_FORMS = (
    "Write a Python function that {task}.",
    "Write a Python function that {task}. Include a docstring.",
    "Write a short Python program that {task}.",
    "In Python, write a function that {task} and show an example of its use.",
    "Write a JavaScript function that {task}.",
    "Give me Python code that {task}, with comments.",
    "Write Python unit tests for a function that {task}.",
    "Write a C function that {task}.",
    "Explain step by step how to write a function that {task}, then show the code.",
)
THING_FORMS = (
    "Write a Python class for {thing}.",
    "Write a Python class for {thing} with a few methods and an example.",
    "Design a small Java class that models {thing}.",
    "Write a Python dataclass that represents {thing} and a function that prints it.",
)
TOPIC_PROSE = (
    "Write an essay about {topic}.",
    "Write a short article about the history of {topic}.",
    "Write two paragraphs about why {topic} matter to people.",
    "Describe {topic} in vivid language.",
    "Write a poem about {topic}.",
    "Write the introduction of a book about {topic}.",
    "Write a speech about {topic} for a school audience.",
    "Write a diary entry of someone who loves {topic}.",
)
SUBJECT_PROSE = (
    "Write a short story about {subject}.",
    "Tell me a bedtime story about {subject}.",
    "Write the opening of a novel about {subject}.",
    "Write a fable about {subject} with a moral.",
    "Continue this story: Once upon a time there was {subject}.",
)
TOPIC_CHAT = (
    "What is interesting about {topic}?",
    "Explain {topic} to a ten year old.",
    "Give me five facts about {topic}.",
    "Why should I care about {topic}?",
    "What are common misunderstandings about {topic}?",
    "Tell me about {topic}.",
    "What questions should I ask an expert on {topic}?",
    "List the advantages and disadvantages of {topic}.",
    "How has {topic} changed over the last hundred years?",
)
ACTIVITY_CHAT = (
    "How do I {activity}?",
    "Give me some tips to {activity}.",
    "I want to {activity}. Where should I start?",
    "What is the best way to {activity}?",
    "Make a simple plan to {activity} in one month.",
    "What mistakes should I avoid when I {activity}?",
)
MODULES = """
argparse asyncio base64 bisect calendar collections configparser contextlib copy csv dataclasses
datetime decimal difflib email enum fileinput fnmatch fractions functools glob gzip hashlib heapq
hmac html http inspect io itertools json logging math mimetypes operator os pathlib pprint queue
random re sched secrets shlex shutil signal socket sqlite3 statistics string struct subprocess
tarfile tempfile textwrap threading time timeit tokenize traceback types unittest urllib.parse
uuid warnings wave weakref zipfile
"""


def _items(block: str) -> list[str]:
    return [item.strip() for line in block.strip().splitlines() for item in line.split("|")]


def _library_prompts() -> list[str]:
    prompts = []
    for name in MODULES.split():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = importlib.import_module(name)
            for attribute in sorted(vars(module)):
                value = getattr(module, attribute)
                text = inspect.getdoc(value) if callable(value) else None
                if attribute.startswith("_") or not text:
                    continue
                line = text.splitlines()[0].strip()[:120]
                prompts += [
                    f"Show an example that uses {name}.{attribute} in Python.",
                    f"Write a Python function that does the following: {line}",
                ]
    return prompts


def training_prompts(seed: int) -> list[str]:
    """All prompts in a seeded order; about 5,000, a third of them code."""
    code = [form.format(task=task) for task in _items(CODE_TASKS) for form in CODE_FORMS]
    code += [form.format(thing=thing) for thing in _items(CODE_THINGS) for form in THING_FORMS]
    rng = random.Random(seed)
    code += rng.sample(_library_prompts(), 700)
    prose = [form.format(topic=topic) for topic in _items(TOPICS) for form in TOPIC_PROSE]
    prose += [form.format(subject=s) for s in _items(SUBJECTS) for form in SUBJECT_PROSE]
    chat = [form.format(topic=topic) for topic in _items(TOPICS) for form in TOPIC_CHAT]
    chat += [form.format(activity=a) for a in _items(ACTIVITIES) for form in ACTIVITY_CHAT]
    for group in (code, prose, chat):
        rng.shuffle(group)
    size = min(len(code), len(prose), len(chat))
    mixed = [p for three in zip(code[:size], prose[:size], chat[:size], strict=True) for p in three]
    return mixed


def source_text(limit_bytes: int) -> str:
    """Python source of the standard library, in file order, up to `limit_bytes`."""
    folder = Path(inspect.getfile(inspect)).parent
    text = ""
    for path in sorted(folder.glob("*.py")):
        text += path.read_text(errors="ignore")[:12000]
        if len(text) > limit_bytes:
            break
    return text
