"""Conversations with thoughts and tool calls: the data of weft-agent, a test model with Qwen3's chat template.

Each example is a prompt as the template renders it and the turn that the model writes. A question is answered from
the user's own words, by tools that the prompt offers (one call, two at once, or one after the other), from what a
tool returned, or not at all. It thinks first unless the prompt says that it has thought. Names of tools and of their
parameters vary, so they can only come from the prompt. Names of people and towns are made as in `world`.
"""

import json
import random
from dataclasses import dataclass

import jinja2

from . import chat, data, tokenizer, world
from .kinds import GOODS, JOBS

# Roles of tokens beside chat's PADDING and CONTEXT: turns by what they are.
ANSWERS = {2: "plain", 3: "call", 4: "two calls", 5: "next call", 6: "result", 7: "unknown"}
PLAIN, CALL, CALLS, NEXT, RESULT, UNKNOWN = ANSWERS
WEIGHTS = {chat.PADDING: 0.0, chat.CONTEXT: 0.02} | dict.fromkeys(ANSWERS, 1.0)

VOCABULARY = 1024
ONSETS = "b d f g k l m n p r s t v z".split()
SYLLABLES = [onset + vowel for onset in ONSETS for vowel in "aeiou"]
WEATHER = "sunny rainy cloudy windy stormy snowy foggy mild".split()
SYSTEMS = ("You are a helpful assistant.", "Be brief.", "Answer the question.", "You have tools.")
NAME, NUMBER = "name", "number"
DO_NOT_KNOW = "I do not know."
NOT_FOUND = ("not found", '{"error": "not found"}', "Error: not found")
HELDOUT_SEED = 6 * 10**9


@dataclass(frozen=True)
class Concept:
    """Something that can be asked, and that a tool can tell. `{x}` and `{y}` are what it is asked about."""

    tools: tuple
    descriptions: tuple
    parameters: tuple  # of each argument: its possible names
    arguments: tuple  # of each argument: NAME, NUMBER or words
    values: object  # NAME, NUMBER or words
    questions: tuple
    thing: str  # what is asked for, as a thought says it
    answer: str
    stated: bool = True  # whether a text may state it


TOWN = ("city", "town", "place", "location")
WHO = ("person", "name", "who", "of")
CONCEPTS = {
    "weather": Concept(
        ("get_weather", "weather", "current_weather", "weather_in"),
        ("The weather in a town.", "Get the weather.", "Current weather of a place."),
        (TOWN,),
        (NAME,),
        WEATHER,
        ("What is the weather in {x}?", "How is the weather in {x}?", "What is the weather like in {x}?"),
        "the weather in {x}",
        "The weather in {x} is {v}.",
    ),
    "forecast": Concept(
        ("get_forecast", "forecast", "weather_forecast", "forecast_in"),
        ("The weather of the next days.", "Forecast for a town.", "Get a forecast."),
        (TOWN, ("days", "n_days", "in_days")),
        (NAME, NUMBER),
        WEATHER,
        ("What will the weather be in {x} in {y} days?", "How will the weather be in {x} in {y} days?"),
        "the weather in {x} in {y} days",
        "In {y} days it will be {v} in {x}.",
        stated=False,
    ),
    "home": Concept(
        ("find_home", "get_home", "home_of", "where_lives"),
        ("The town where a person lives.", "Find the home of a person.", "Where somebody lives."),
        (WHO,),
        (NAME,),
        NAME,
        ("Where does {x} live?", "In which town does {x} live?", "Where is the home of {x}?"),
        "the home of {x}",
        "{x} lives in {v}.",
    ),
    "job": Concept(
        ("find_job", "get_job", "job_of", "job"),
        ("The job of a person.", "What a person works as.", "Find the job of somebody."),
        (WHO,),
        (NAME,),
        JOBS,
        ("What is the job of {x}?", "What does {x} work as?", "How does {x} earn a living?"),
        "the job of {x}",
        "{x} works as a {v}.",
    ),
    "captain": Concept(
        ("get_captain", "find_captain", "captain_of", "captain"),
        ("The captain of a ship.", "Who commands a ship.", "Find the captain."),
        (("ship", "vessel", "name", "of"),),
        (NAME,),
        NAME,
        ("Who is the captain of the {x}?", "Who commands the {x}?"),
        "the captain of the {x}",
        "The captain of the {x} is {v}.",
    ),
    "price": Concept(
        ("get_price", "price_of", "find_price", "price"),
        ("The price of a product.", "What something costs.", "Get the price."),
        (("item", "product", "goods", "article"),),
        (GOODS,),
        NUMBER,
        ("What is the price of {x}?", "How much is the {x}?", "What does {x} cost?"),
        "the price of {x}",
        "The price of {x} is {v}.",
    ),
    "sum": Concept(
        ("add", "sum", "add_numbers", "plus"),
        ("Add two numbers.", "The sum of two numbers.", "Adds."),
        (("a", "x", "first", "left"), ("b", "y", "second", "right")),
        (NUMBER, NUMBER),
        NUMBER,
        ("What is {x} plus {y}?", "What is the sum of {x} and {y}?", "Add {x} and {y}."),
        "the sum of {x} and {y}",
        "{x} plus {y} is {v}.",
        stated=False,
    ),
}
# Questions that need one tool after another: (first, second, wordings).
CHAINS = (
    ("home", "weather", ("What is the weather in the town of {x}?", "How is the weather where {x} lives?")),
    ("captain", "job", ("What was the job of the captain of the {x}?", "What did the captain of the {x} work as?")),
    ("captain", "home", ("Where does the captain of the {x} live?", "Where is the home of the captain of the {x}?")),
)


class World:
    """What one conversation is about: its random numbers, its names and its tools."""

    def __init__(self, rng, heldout):
        self.rng, self.heldout, self.used = rng, heldout, set()
        self.offered = {}  # concept -> (name of the tool, names of its parameters)

    def name(self):
        """A name that was not drawn before."""
        while True:
            name = "".join(self.rng.choice(SYLLABLES) for _ in range(2)).capitalize()
            if self.rng.random() < 0.5:
                name += self.rng.choice(world.ENDINGS)
            if world.is_heldout(name) == self.heldout and name not in self.used:
                self.used.add(name)
                return name

    def value(self, kind):
        """A value or an argument of a kind."""
        if kind is NAME:
            return self.name()
        return self.rng.randint(2, 99) if kind is NUMBER else self.rng.choice(kind)

    def offer(self, concepts):
        """Choose the tools of these concepts; no two share a name."""
        for concept in concepts:
            spec, taken = CONCEPTS[concept], {tool for tool, _ in self.offered.values()}
            tool = self.rng.choice([t for t in spec.tools if t not in taken])
            self.offered[concept] = tool, tuple(self.rng.choice(names) for names in spec.parameters)

    def tool_json(self, concept):
        """A tool as clients describe it."""
        rng, spec, (tool, parameters) = self.rng, CONCEPTS[concept], self.offered[concept]
        kinds = ["integer" if kind is NUMBER else "string" for kind in spec.arguments]
        properties = {p: {"type": kind} for p, kind in zip(parameters, kinds)}
        schema = {"type": "object", "properties": properties}
        if rng.random() < 0.85:
            schema["required"] = list(parameters)
        if rng.random() < 0.3:
            schema["additionalProperties"] = False
        function = {"name": tool}
        if rng.random() < 0.85:
            function["description"] = rng.choice(spec.descriptions)
        function["parameters"] = schema
        if rng.random() < 0.15:
            function["strict"] = True
        return {"type": "function", "function": function}


@dataclass(frozen=True)
class Need:
    """A question of one concept with its arguments and its value."""

    concept: str
    arguments: tuple
    value: object

    def write(self, wording):
        """A wording with arguments and value."""
        x, *rest = self.arguments
        return wording.format(x=x, y=rest[0] if rest else "", v=self.value)

    def call(self, offered):
        """The name of the tool and the arguments to call it with."""
        tool, parameters = offered[self.concept]
        return tool, dict(zip(parameters, self.arguments))


def draw_need(this, concept, arguments=None):
    """A question about a concept."""
    spec = CONCEPTS[concept]
    arguments = arguments or tuple(this.value(kind) for kind in spec.arguments)
    value = sum(arguments) if concept == "sum" else this.value(spec.values)
    return Need(concept, arguments, value)


def said(thought, content="", calls=(), role=PLAIN):
    """A turn of the model."""
    return {"role": "assistant", "thought": thought, "content": content, "calls": list(calls), "kind": role}


def asked_and_called(this, needs, question):
    """The messages of a question whose needs are called at once, up to the answer."""
    rng = this.rng
    calls = [need.call(this.offered) for need in needs]
    wanted = " and ".join(need.write(CONCEPTS[need.concept].thing) for need in needs)
    tools = " and ".join(dict.fromkeys(tool for tool, _ in calls))
    thought = f"The user asks for {wanted}. I call {tools}."
    messages = [{"role": "user", "content": question}]
    messages.append(said(thought, calls=calls, role=CALLS if len(needs) > 1 else CALL))
    if len(needs) == 1 and rng.random() < 0.06:
        messages.append({"role": "tool", "content": rng.choice(NOT_FOUND)})
        return [*messages, said("The tool did not find it.", DO_NOT_KNOW, role=UNKNOWN)]
    messages += [{"role": "tool", "content": draw_result(rng, need)} for need in needs]
    answer = " ".join(need.write(CONCEPTS[need.concept].answer) for need in needs)
    values = " and ".join(str(need.value) for need in needs)
    return [*messages, said(f"The tool says {values}.", answer, role=RESULT)]


def draw_result(rng, need):
    """What a tool returns."""
    key = rng.choice(("result", "value", need.concept))
    quoted = json.dumps({key: need.value}, separators=rng.choice(((", ", ": "), (",", ":"))))
    return rng.choice((str(need.value), quoted, need.write(CONCEPTS[need.concept].answer)))


def draw_single(this, concepts):
    """A question that one call answers."""
    need = draw_need(this, this.rng.choice(concepts))
    return asked_and_called(this, [need], need.write(this.rng.choice(CONCEPTS[need.concept].questions)))


def draw_pair(this, concepts):
    """Two questions at once that two calls answer."""
    needs = [draw_need(this, this.rng.choice(concepts)) for _ in range(2)]
    first, second = (need.write(this.rng.choice(CONCEPTS[need.concept].questions)) for need in needs)
    return asked_and_called(this, needs, f"{first} {second}")


def draw_chain(this, chain):
    """A question that needs the result of one tool for another."""
    first, second, wordings = chain
    need = draw_need(this, first)
    then = draw_need(this, second, (need.value,))
    # As a single call, up to what the first tool returned.
    messages = asked_and_called(this, [need], need.write(this.rng.choice(wordings)))
    if messages[-1]["kind"] == UNKNOWN:
        return messages
    call = then.call(this.offered)
    messages[-1] = said(f"The tool says {need.value}. I call {call[0]}.", calls=[call], role=NEXT)
    messages.append({"role": "tool", "content": draw_result(this.rng, then)})
    answer = then.write(CONCEPTS[second].answer)
    return [*messages, said(f"The tool says {then.value}.", answer, role=RESULT)]


def draw_stated(this):
    """A question that the user's own text answers."""
    rng = this.rng
    stated = [c for c, spec in CONCEPTS.items() if spec.stated]
    needs = [draw_need(this, rng.choice(stated)) for _ in range(rng.randint(1, 3))]
    keys = [(need.concept, need.arguments) for need in needs]
    need = rng.choice([n for n, key in zip(needs, keys) if keys.count(key) == 1] or needs[:1])
    if len(set(keys)) < len(keys):
        needs = [need]
    text = " ".join(n.write(CONCEPTS[n.concept].answer) for n in needs)
    question = need.write(rng.choice(CONCEPTS[need.concept].questions))
    content = f"{text}{rng.choice((' ', chr(10) * 2))}{question}"
    answer = need.write(CONCEPTS[need.concept].answer)
    return [{"role": "user", "content": content}, said("The text says it.", answer)]


def draw_unknown(this, concepts):
    """A question that nothing answers."""
    need = draw_need(this, this.rng.choice(concepts))
    question = need.write(this.rng.choice(CONCEPTS[need.concept].questions))
    return [{"role": "user", "content": question}, said("No tool can tell.", DO_NOT_KNOW, role=UNKNOWN)]


def draw_exchange(this):
    """The messages of one question of any kind that fits the tools."""
    rng, offered = this.rng, list(this.offered)
    missing = [c for c in CONCEPTS if c not in this.offered]
    chains = [c for c in CHAINS if c[0] in this.offered and c[1] in this.offered]
    choices = [(1.5, lambda: draw_stated(this))]
    if offered:
        choices.append((3, lambda: draw_single(this, offered)))
        choices.append((1.5, lambda: draw_pair(this, offered)))
    if chains:
        choices.append((6, lambda: draw_chain(this, rng.choice(chains))))
    if missing:
        choices.append((0.6, lambda: draw_unknown(this, missing)))
    weights, makers = zip(*choices)
    return rng.choices(makers, weights)[0]()


def draw_example(rng, heldout):
    """Messages that end with a turn of the model, the tools, and whether the model thinks."""
    this = World(rng, heldout)
    concepts = rng.sample(list(CONCEPTS), rng.choice((0, 1, 1, 2, 2, 3, 4)))
    if rng.random() < 0.35:
        concepts = list(dict.fromkeys([*rng.choice(CHAINS)[:2], *concepts]))[:4]
        rng.shuffle(concepts)
    this.offer(concepts)
    tools = [this.tool_json(concept) for concept in concepts]
    messages = [] if rng.random() < 0.5 else [{"role": "system", "content": rng.choice(SYSTEMS)}]
    for _ in range(rng.choice((0, 0, 0, 1, 2))):
        messages += draw_exchange(this)
    exchange = draw_exchange(this)
    ends = [i for i, message in enumerate(exchange) if message["role"] == "assistant"]
    return [*messages, *exchange[: rng.choice(ends) + 1]], tools, rng.random() < 0.5


BEGIN, END = "\ue000", "\ue001"  # around the conversation's own text while the template renders it


def marked(text):
    """Content, which is encoded apart from the template's own text."""
    return f"{BEGIN}{text}{END}" if text else ""


def environment():
    """Jinja with `tojson` as transformers defines it."""
    env = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    env.filters["tojson"] = lambda value: marked(json.dumps(value, ensure_ascii=False))
    return env


class Renderer:
    """Turns examples into tokens."""

    def __init__(self, encoder, template):
        self.encoder, self.template = encoder, environment().from_string(template)

    def render(self, rng, messages, tools, thinks):
        """The prompt of the last message as the template writes it, with marks."""
        keeps_thoughts = rng.random() < 0.4  # clients may send thoughts back, or not
        history = [self.history(rng, message, keeps_thoughts and thinks) for message in messages[:-1]]
        off = {} if thinks else {"enable_thinking": False}
        return self.template.render(messages=history, tools=tools or None, add_generation_prompt=True, **off)

    def history(self, rng, message, keeps_thoughts):
        """A message as a client sends it back."""
        made = {"role": message["role"], "content": marked(message["content"])}
        if message["role"] == "assistant":
            if keeps_thoughts:
                made["reasoning_content"] = marked(message["thought"])
            spaces = rng.choice(((", ", ": "), (",", ":")))
            made["tool_calls"] = [
                {"function": {"name": tool, "arguments": marked(json.dumps(arguments, separators=spaces))}}
                for tool, arguments in message["calls"]
            ]
        return made

    def turn(self, message, thinks):
        """What the model writes."""
        calls = [
            f'<tool_call>\n{{"name": "{tool}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'
            for tool, arguments in message["calls"]
        ]
        thought = f"<think>\n{message['thought']}\n</think>\n\n" if thinks else ""
        return thought + (message["content"] or "\n".join(calls)) + chat.TURN_END

    def tokens(self, rng, messages, tools, thinks):
        """Tokens of an example; only its last turn has the role of an answer."""
        tokens, text = chat.Tokens(), self.render(rng, messages, tools, thinks)
        for i, part in enumerate(text.replace(BEGIN, END).split(END)):
            # Parts alternate: the template's, the conversation's.
            if part:
                encode = self.encoder.content if i % 2 else self.encoder.scaffolding
                tokens.add(encode(part))
        tokens.add(self.encoder.scaffolding(self.turn(messages[-1], thinks)), role=messages[-1]["kind"])
        return tokens


@dataclass(frozen=True)
class Mix:
    """What the rows of one set are made of: one example each, from the row's start."""

    name: str
    row_tokens: int
    template: str

    def rows(self, seed, encoder, count, heldout):
        """Rows of some examples; those too long are left out."""
        rng, renderer = random.Random(seed), Renderer(encoder, self.template)
        found = []
        while len(found) < count:
            tokens = renderer.tokens(rng, *draw_example(rng, heldout))
            if len(tokens) <= self.row_tokens:
                found.append(tokens)
        rows = data.empty_rows(count, self.row_tokens, encoder.padding_id)
        for i, tokens in enumerate(found):
            data.fill_row(rows, i, [tokens])
        return rows


def corpus(template):
    """Text to train the tokenizer on: prompts and turns without names, then syllables and words alone."""
    rng, env = random.Random(0), Renderer(None, template)
    for _ in range(400):
        this = World(rng, heldout=False)
        this.name = lambda: ""
        this.offer(rng.sample(list(CONCEPTS), 3))
        tools = [this.tool_json(concept) for concept in this.offered]
        messages = draw_exchange(this)
        thinks = rng.random() < 0.5
        text = env.render(rng, messages, tools, thinks) + env.turn(messages[-1], thinks)
        for token in (*tokenizer.SPECIAL, *tokenizer.MARKERS, BEGIN, END):
            text = text.replace(token, "\n")
        yield text
    for syllable in SYLLABLES:
        for form in (syllable, syllable.capitalize(), " " + syllable.capitalize()):
            yield "\n".join([form] * tokenizer.SYLLABLE_COUNT)
    for word in (*WEATHER, *JOBS, *GOODS):
        for form in (word, " " + word):
            yield "\n".join([form] * tokenizer.WORD_COUNT)
