//! Rules of strangers: schemas and expressions that once ended the process are refused at once, and
//! whatever grows from them leaves the server answering others.

mod harness;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use self::harness::{read, send, serve};

/// How long a refusal may take, with room for a busy machine.
const SOON: Duration = Duration::from_secs(5);
/// The seed of the grown rules.
const SEED: u64 = 19;

/// A chat's status and answer, and how long they took.
fn chat(address: SocketAddr, more: &Value) -> (u16, String, Duration) {
    let mut body = json!({"max_tokens": 3, "messages": [{"role": "user", "content": "x"}]});
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    let start = Instant::now();
    let answer = read(send(address, "POST", "/v1/chat/completions", &body.to_string()));
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.expect("an answer"), answer, start.elapsed())
}

fn with_schema(schema: &Value) -> Value {
    json!({"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}})
}

fn with_tool(schema: &Value) -> Value {
    let tool = json!({"type": "function", "function": {"name": "t", "parameters": schema}});
    json!({"tools": [tool], "tool_choice": "required"})
}

/// Calls that the model may make by itself.
fn with_strict_tools(schemas: &[Value]) -> Value {
    let tool = |(index, schema): (usize, &Value)| {
        let name = format!("t{index}");
        json!({"type": "function", "function": {
            "name": name, "strict": true, "parameters": schema}})
    };
    json!({"tools": schemas.iter().enumerate().map(tool).collect::<Vec<_>>()})
}

fn with_regex(regex: &str) -> Value {
    json!({"structured_outputs": {"regex": regex}})
}

/// A schema of `n` definitions, each made from a reference to the next.
fn chain(n: usize, link: impl Fn(Value) -> Value) -> Value {
    let next = |i| json!({"$ref": format!("#/$defs/d_{i}")});
    let mut defs: Map<_, _> = (0..n).map(|i| (format!("d_{i}"), link(next(i + 1)))).collect();
    defs.insert(format!("d_{n}"), json!({"type": "null"}));
    json!({"type": "object", "properties": {"a": next(0)}, "$defs": defs})
}

fn optional_properties(n: usize) -> Value {
    let fields = (0..n).map(|i| (format!("p{i}"), json!({"type": "null"})));
    json!({"type": "object", "properties": fields.collect::<Map<_, _>>()})
}

/// A schema of `n` options of which each must hold together with each of `n` others.
fn pairs(n: usize) -> Value {
    let options = |key: &str| -> Vec<Value> {
        (0..n).map(|i| json!({"type": "object", "required": [format!("{key}{i}")]})).collect()
    };
    json!({"allOf": [{"anyOf": options("a")}, {"anyOf": options("b")}]})
}

fn deadly_schemas() -> Vec<Value> {
    let array = |next| json!({"type": "array", "items": next});
    // Each level has the next one twice, written out because another schema must hold beside it.
    let twice = |next: Value| {
        let both = json!({"allOf": [next, {"type": "array", "minItems": 0}]});
        json!({"type": "array", "prefixItems": [both, both]})
    };
    let patterns = (0..500).map(|i| (format!("^{i}_[a-z]*$"), json!({})));
    vec![
        chain(300, array),
        chain(4000, array),
        chain(257, |next| json!({"anyOf": [next]})),
        chain(357, |next| json!({"allOf": [next]})),
        chain(668, |next| next),
        chain(40, twice),
        optional_properties(5000),
        optional_properties(6957),
        pairs(1000),
        pairs(100),
        // Of so many properties, at least one.
        {
            let mut any = optional_properties(999);
            any["minProperties"] = 1.into();
            any
        },
        json!({"type": "object", "patternProperties": patterns.collect::<Map<_, _>>()}),
        json!({"enum": (0..20_000).collect::<Vec<_>>()}),
        chain(1, |_| json!({"type": "integer", "multipleOf": 1_000_003})),
        chain(1, |_| {
            let multiple = |n: u32| json!({"type": "integer", "multipleOf": n});
            json!({"type": "array", "prefixItems": (900..2000).map(multiple).collect::<Vec<_>>()})
        }),
        json!({"type": "string", "pattern": "a*b*".repeat(40_000)}),
        json!({"const": "x".repeat(200_000)}),
    ]
}

#[test]
fn rules_that_ended_the_process_are_refused_at_once() {
    let (address, _) = serve();
    // The first rule reads the vocabulary.
    assert_eq!(chat(address, &with_regex("a")).0, 200);
    let mut bodies: Vec<Value> = deadly_schemas().iter().map(with_schema).collect();
    let objects = deadly_schemas().into_iter().filter(|schema| schema["type"] != "string");
    for schema in objects {
        bodies.push(with_tool(&schema));
        bodies.push(with_strict_tools(&[schema]));
    }
    // Each alone would do.
    bodies.push(with_strict_tools(&vec![pairs(40); 8]));
    bodies.push(with_regex(&"a*b*".repeat(40_000)));
    bodies.push(with_regex(&r"\d{0,9}".repeat(8000)));
    let many: Vec<String> = (0..30_000).map(|i| i.to_string()).collect();
    bodies.push(json!({"structured_outputs": {"choice": many}}));
    for body in bodies {
        let (status, answer, time) = chat(address, &body);
        let (param, body) = (body.as_object().unwrap().keys().next().unwrap(), body.to_string());
        let body = &body[..body.len().min(200)];
        assert_eq!(status, 400, "{body}: {answer}");
        assert!(answer.contains(&format!("\"param\":\"{param}\"")), "{param}: {answer}");
        let names_the_limit = ["at most", "more than", "the limit is"];
        assert!(names_the_limit.iter().any(|said| answer.contains(said)), "{body}: {answer}");
        assert!(time < SOON, "{body}: {time:?}");
        let (status, _, time) = chat(address, &json!({}));
        assert!(status == 200 && time < SOON, "after {body}: {status} in {time:?}");
    }
}

/// The costliest rules within the bounds that were found. A compiler cannot be interrupted, so what
/// it may begin must be short.
#[test]
fn the_costliest_rules_take_a_second() {
    let (address, _) = serve();
    assert_eq!(chat(address, &with_regex("a")).0, 200);
    let patterns = |n: usize, pattern: &dyn Fn(usize) -> String| -> Vec<Value> {
        (0..n).map(|i| json!({"type": "string", "pattern": pattern(i)})).collect()
    };
    let texts = json!({"allOf": [{"anyOf": patterns(90, &|i| format!("a{i}.*"))},
        {"anyOf": patterns(90, &|i| format!(".*b{i}"))}]});
    let mut any = optional_properties(98);
    any["minProperties"] = 1.into();
    let multiples: Vec<Value> =
        (450..550).map(|n| json!({"type": "integer", "multipleOf": n})).collect();
    for schema in [
        texts,
        any,
        pairs(99),
        optional_properties(1000),
        json!({"type": "integer", "multipleOf": 49_999}),
        json!({"type": "array", "prefixItems": multiples}),
    ] {
        let of_tool = json!({"type": "object", "properties": {"x": schema}, "required": ["x"]});
        let mut bodies = vec![with_schema(&schema), with_tool(&of_tool)];
        bodies.push(with_strict_tools(&[of_tool]));
        for body in bodies {
            let (status, answer, time) = chat(address, &body);
            let body = body.to_string();
            let body = &body[..body.len().min(200)];
            // It may turn out to be too much for the answer.
            assert!([200, 400].contains(&status), "{body}: {answer}");
            assert!(time < 2 * SOON, "{body}: {time:?}");
        }
    }
}

#[test]
fn rules_of_a_size_that_people_write_are_followed() {
    let (address, _) = serve();
    let array = |next| json!({"type": "array", "items": next});
    for schema in [chain(60, array), chain(200, |next| next), optional_properties(200)] {
        let (status, answer, _) = chat(address, &with_schema(&schema));
        assert_eq!(status, 200, "{answer}");
        assert_eq!(chat(address, &with_tool(&schema)).0, 200);
    }
    assert_eq!(chat(address, &with_regex(&"[a-z]{2,9} ".repeat(180))).0, 200);
}

/// As pydantic, zod, LangChain and instructor write them.
#[test]
fn schemas_of_ordinary_libraries_are_followed() {
    let (address, _) = serve();
    for schema in [
        json!({"type": "object", "propertyNames": {"type": "string"},
            "additionalProperties": {"type": "number"}}),
        json!({"type": "object", "propertyNames": {"enum": ["a.b", "c"]},
            "additionalProperties": {"type": "number"}}),
        json!({"type": "array", "items": {"type": "string"}, "uniqueItems": true}),
        json!({"oneOf": [{"type": "integer"}, {"type": "integer", "minimum": 3}]}),
        json!({"oneOf": [{"properties": {"a": {"type": "string"}}, "type": "object"},
            {"properties": {"b": {"type": "string"}}, "type": "object"}]}),
    ] {
        let of_tool = json!({"type": "object", "properties": {"a": schema}, "required": ["a"]});
        for body in [with_schema(&schema), with_tool(&of_tool)] {
            let (status, answer, _) = chat(address, &body);
            assert_eq!(status, 200, "{schema}: {answer}");
        }
    }
    for format in
        ["password", "binary", "byte", "path", "file-path", "uri-reference", "json-pointer"]
    {
        let schema = json!({"type": "string", "format": format});
        assert_eq!(chat(address, &with_schema(&schema)).0, 200, "{format}");
    }
}

/// Models that refer to themselves have a reference for a root.
#[test]
fn arguments_are_an_object() {
    let (address, _) = serve();
    let node = json!({"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}});
    for schema in [
        Value::Null,
        json!({}),
        json!({"properties": {"a": {"type": "null"}}}),
        json!({"$defs": {"Node": node}, "$ref": "#/$defs/Node"}),
    ] {
        let (status, answer, _) = chat(address, &with_tool(&schema));
        assert_eq!(status, 200, "{schema}: {answer}");
    }
    for schema in
        [json!({"type": "array", "items": {}}), json!({"type": ["object", "null"]}), json!([])]
    {
        let (status, answer, _) = chat(address, &with_tool(&schema));
        assert_eq!(status, 400, "{schema}: {answer}");
        assert!(answer.contains("\"param\":\"tools[0].function.parameters\""), "{answer}");
    }
}

#[test]
fn refusals_name_the_field_and_speak_plainly() {
    let (address, _) = serve();
    let answer = read(send(address, "POST", "/v1/chat/completions", "{}"));
    assert!(answer.contains("\"param\":\"messages\"") && answer.contains("messages is missing"));
    let messages = json!({"messages": [{"content": "x"}]}).to_string();
    let answer = read(send(address, "POST", "/v1/chat/completions", &messages));
    assert!(answer.contains("\"param\":\"messages[0]"), "{answer}");
    let integer = |low: f64, high: f64| {
        with_schema(&json!({"type": "integer", "minimum": low, "maximum": high}))
    };
    for (body, words) in [
        (with_regex("[.*"), "an expression is not valid: unclosed character class"),
        (with_regex("a(?=b)"), "expressions cannot look around"),
        (with_regex(r"a\B"), "expressions cannot look around"),
        (with_regex(r"[^\x00-\x{10FFFF}]"), "no token of this model continues it"),
        (integer(5.0, 3.0), "no value matches the schema: minimum (5) is greater"),
        (integer(1.5, 1.6), "no value matches the schema"),
        (integer(-1e300, 1e300), "a number that is too large"),
        (with_schema(&json!({"type": "number", "maximum": 1e300})), "a number that is too large"),
        (with_schema(&json!({"type": "string", "pattern": "(?=a)"})), "cannot look around"),
        (with_schema(&json!({"not": {}})), "keywords that cannot be followed: [\\\"not\\\"]"),
        (with_schema(&json!({"$ref": "http://e.com/x"})), "must point into the schema itself"),
    ] {
        let (status, answer, _) = chat(address, &body);
        assert_eq!(status, 400, "{body}: {answer}");
        assert!(answer.contains(words), "{body}: {answer}");
        let param = body.as_object().unwrap().keys().next().unwrap();
        assert!(answer.contains(&format!("\"param\":\"{param}\"")), "{body}: {answer}");
        for word in ["lexer", "NoExtension", "Failed", "verbose", "regex", "fuel", "panic"] {
            assert!(!answer.contains(word), "{word}: {answer}");
        }
    }
    // Small to read, and large to match.
    let regex = "([a-z]{0,60}[a-m]{0,60}[c-x]{0,60}){0,60}z";
    let body = json!({"max_tokens": 60, "structured_outputs": {"regex": regex}});
    let (status, answer, _) = chat(address, &body);
    assert_eq!(status, 400, "{answer}");
    assert!(answer.contains("the rule is too complex"), "{answer}");
    assert!(answer.contains("\"param\":\"structured_outputs\""), "{answer}");
}

/// Many clients with costly rules at once: each is answered or sent away, and others go on.
#[test]
fn a_crowd_of_costly_rules_does_not_keep_others_out() {
    let (address, _) = serve();
    assert_eq!(chat(address, &with_regex("a")).0, 200);
    let costly = with_schema(&optional_properties(900));
    std::thread::scope(|scope| {
        let crowd: Vec<_> = (0..64).map(|_| scope.spawn(|| chat(address, &costly).0)).collect();
        while crowd.iter().any(|client| !client.is_finished()) {
            let start = Instant::now();
            let answer = harness::get(address, "/health");
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
            std::thread::sleep(Duration::from_millis(50));
        }
        let statuses: Vec<u16> = crowd.into_iter().map(|client| client.join().unwrap()).collect();
        assert!(statuses.iter().all(|status| [200, 429, 503].contains(status)), "{statuses:?}");
        assert!(statuses.contains(&200) && statuses.contains(&503), "{statuses:?}");
    });
    assert_eq!(chat(address, &with_regex("a")).0, 200);
}

/// Numbers that look random and are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }

    fn of<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }

    /// Small numbers as often as large ones.
    fn size(&mut self, max: usize) -> usize {
        let bits = 1 + self.below(max.ilog2() as usize + 1);
        self.below(1 << bits).min(max)
    }
}

/// One link of a grown schema, with references to others.
fn grown_link(random: &mut Random, n: usize, i: usize) -> Value {
    let mut next = || {
        // Mostly forward; now and then back, which makes a circle.
        let to = if random.below(8) == 0 {
            random.below(n + 1)
        } else {
            (i + 1 + random.below(3)).min(n)
        };
        json!({"$ref": format!("#/$defs/d_{to}")})
    };
    let (a, b, c) = (next(), next(), next());
    let size = random.size(5000);
    match random.below(14) {
        0 => a,
        1 => json!({"type": "array", "items": a, "maxItems": size}),
        2 => json!({"anyOf": [a, b, c]}),
        3 => json!({"oneOf": [a, {"type": "null"}]}),
        4 => json!({"allOf": [a, b]}),
        5 => json!({"allOf": [a, {"type": "array", "minItems": 0}]}),
        6 => json!({"type": "array", "prefixItems": [a, b, c], "items": false}),
        7 => json!({"type": "object", "properties": {"a": a, "b": b}, "required": ["a"]}),
        8 => json!({"type": "object", "additionalProperties": a, "minProperties": size}),
        9 => json!({"type": "object", "patternProperties": {"^a": a, "^b": b}}),
        10 => json!({"minimum": size, "anyOf": [a, {"maxLength": size}], "properties": {"a": b}}),
        11 => json!({"enum": (0..size).collect::<Vec<_>>(), "anyOf": [a, b]}),
        12 => json!({"type": "string", "pattern": grown_regex(random), "maxLength": size}),
        _ => optional_properties(size.min(300)),
    }
}

fn grown_schema(random: &mut Random) -> Value {
    let n = random.size(2000);
    let defs: Map<_, _> = (0..n).map(|i| (format!("d_{i}"), grown_link(random, n, i))).collect();
    let mut schema = json!({"$ref": "#/$defs/d_0", "$defs": defs});
    schema["$defs"][format!("d_{n}")] = json!({"type": *random.of(&["null", "string", "array"])});
    schema
}

fn grown_regex(random: &mut Random) -> String {
    let pieces = [
        "a*b*",
        r"\d{0,9}",
        r"\w?",
        "(x|y)?",
        ".{0,1000}",
        "(a{1,50}){1,50}",
        "(.*a){9}",
        r"\pL+",
        "[^a-c]",
        "(?:ab|ba)*",
        "é*",
        r"\n",
        "(?i:s)",
        "a|b|",
        "(",
        ")",
        "$",
        "[0-9]{4}-",
    ];
    let mut regex = String::new();
    for _ in 0..1 + random.below(4) {
        let unit: String = (0..1 + random.below(3)).map(|_| *random.of(&pieces)).collect();
        regex += &unit.repeat(random.size(2000));
    }
    // Half of them are of a length that is compiled.
    if random.below(2) == 0 {
        regex.truncate(regex.floor_char_boundary(random.size(4095)));
    }
    regex
}

/// As many of each as `WEFT_TEST_RULES` says.
#[test]
fn rules_grown_from_chains_leave_the_server_answering() {
    let n = std::env::var("WEFT_TEST_RULES").map_or(100, |n| n.parse().expect("a number"));
    let (address, _) = serve();
    assert_eq!(chat(address, &with_regex("a")).0, 200);
    let mut random = Random(SEED);
    let mut seen = std::collections::BTreeMap::new();
    for i in 0..n {
        for body in [
            with_schema(&grown_schema(&mut random)),
            with_tool(&grown_schema(&mut random)),
            with_regex(&grown_regex(&mut random)),
        ] {
            let (status, answer, time) = chat(address, &body);
            let body = body.to_string();
            let body = &body[..body.floor_char_boundary(2000)];
            // A rule within the bounds may still be too much for one step of an answer.
            assert!([200, 400].contains(&status), "{i}: {body}: {answer}");
            assert!(time < 2 * SOON, "{i}: {time:?} for {body}");
            *seen.entry(status).or_insert(0) += 1;
        }
        let (status, _, time) = chat(address, &json!({}));
        assert!(status == 200 && time < SOON, "after {i}: {status} in {time:?}");
    }
    println!("statuses and how many: {seen:?}");
    assert!(seen[&200] > n / 4 && seen[&400] > n / 4, "both kinds: {seen:?}");
}
