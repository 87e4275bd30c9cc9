//! Seeds of what answers follow and hold: grammars, expressions and schemas, and calls of tools.

use serde_json::json;

/// A grammar of JSON as llama.cpp's users write it.
const JSON: &str = r#"root ::= object
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws # members
array ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
ws ::= | " " | "\n" [ \t]{0,20}
"#;

/// Grammars; expressions begin with `0`, schemas with `1`.
pub fn grammars() -> Vec<String> {
    let texts = [
        JSON,
        "root ::= \"(\" root? \")\"",
        "root ::= word (\" \" word){1,2}\nword ::= [a-z]+ | \"the\"",
        "# a greeting\nroot ::= \"hi \" name (\"!\" | \".\")?\nname ::= [A-Z] [a-z]{2,}",
        "root ::= a a\na ::= \"x\" b |\nb ::= [^\\n]* a?",
        "root ::= \"\\u00e9\\U0001F600\\x41\\t\" .{3}",
        "root-rule ::= x\nroot ::= root-rule | x+\nx ::= [\\]\\-a-z-]",
        "root ::= ((\"a\"){2,3}){4}",
        "root ::=",
        "0[a-c]{2}(1|2)?",
        "0(?i:yes|no)\\s+\\d{1,3}[^\\x00-\\x1f\"]*",
        "0\\p{L}+(-\\w+)*|.{0,7}",
        "0((a?){9}){9}",
    ];
    let schemas = [
        json!({"type": "object", "properties": {"name": {"$ref": "#/$defs/n"}, "age": {"type":
            "integer", "minimum": 1, "maximum": 120}}, "required": ["name"],
            "additionalProperties": false, "$defs": {"n": {"type": "string", "maxLength": 8}}}),
        json!({"anyOf": [{"const": 1}, {"enum": ["a", null, 2.5]}, {"type": ["null", "array"]}]}),
        json!({"type": "array", "items": {"type": "string", "pattern": "^[a-z]+$"}, "minItems": 1,
            "maxItems": 3}),
        json!({"allOf": [{"type": "object", "properties": {"a": {"type": "number"}}},
            {"properties": {"b": {"format": "date-time"}}}]}),
        json!({"type": "object", "propertyNames": {"enum": ["x.y", "z"]}, "additionalProperties":
            {"type": "number", "multipleOf": 0.5}}),
        json!({"type": "object", "patternProperties": {"^x-": {"type": "boolean"}},
            "minProperties": 1}),
        json!({"oneOf": [{"type": "integer", "exclusiveMinimum": -5}, {"$ref": "#"}]}),
    ];
    let schemas = schemas.iter().map(|schema| format!("1{schema}"));
    texts.iter().map(|text| (*text).to_owned()).chain(schemas).collect()
}

/// Answers with calls in every form; each begins with the byte that chooses how it is read.
pub fn tool_calls() -> Vec<String> {
    const CALL: &str = "{\"name\": \"f\", \"parameters\": {\"n\": 1}}";
    const TAGS: &str = "<function=f>\n<parameter=a>\n1\n</b>2\n</parameter>\n<parameter=n>\n3\n\
                        </parameter>\n</function>";
    let texts = [
        "Let me look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1, \"a\": \"é\"}}\n\
         </tool_call>\n<tool_call>\n{\"name\": \"g\"}\n</tool_call>\n\
         <tool_call>{\"arguments\": \"{}\", \"name\": \"h\"}</tool_call>\nThat is all."
            .to_owned(),
        "<tool_call>[{\"name\": \"f\"}, {\"name\": \"g\"}]</tool_call>".to_owned(),
        "<tool_call>{\"name\": \"f\", \"arguments\": {'a': 'b', n: 1,}}".to_owned(),
        "x <tool_call>not json</tool_call> y".to_owned(),
        format!("<|python_tag|>{CALL};<|python_tag|>{CALL}"),
        format!("I look.\n\n{CALL}\nDone. {{\"name\": \"f\""),
        format!("<tool_call>\n{TAGS}\n</tool_call>"),
        format!("{TAGS}<function=g></function><function=h"),
    ];
    let read = |(i, text): (usize, &String)| {
        ['0', '1', '2'].map(|style| format!("{}{text}", char::from(style as u8 + 3 * i as u8)))
    };
    texts.iter().enumerate().flat_map(read).collect()
}
