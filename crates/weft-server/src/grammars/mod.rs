//! Answers that follow a rule: JSON that matches a schema, a regular expression, or a tool call.
//!
//! llguidance turns a rule into a grammar and returns, token by token, which tokens may follow. It
//! gets the vocabulary from our tokenizer. Special tokens are marked, so that text in a rule never
//! matches one. `bounds` and llguidance's own limits bound the cost of an untrusted rule; `turns`
//! bounds how many rules are compiled at once.

mod bounds;
mod calls;
mod dialect;
mod gbnf;
mod parts;
mod refusals;
mod strict;
mod thinking;
mod turns;

use std::fmt;
use std::sync::Arc;

use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory, TokenParser};
use serde_json::{Value, json};
use weft_core::sampling::Constraint;
use weft_core::tokenizer::Tokenizer;

use crate::api_error::ApiError;
use crate::responses::CallStyle;

use self::parts::Part;
pub(crate) use self::strict::{Both, StrictTools};
pub(crate) use self::thinking::ThinkingLimit;
pub(crate) use self::turns::{Turns, compile};

/// The stack of a thread that compiles. A schema within the bounds takes a tenth of it at most, and
/// only what is used is ever taken from the system.
const STACK_BYTES: usize = 256 << 20;
/// llguidance's limits, where its own are too large for a server. States of the lexer stay as long
/// as an answer and take 1 to 2 kB each.
const MAX_LEXER_STATES: usize = 50_000;
const MAX_GRAMMAR_SYMBOLS: usize = 100_000;
/// As many as the properties and choices that may be need at once; llguidance's 2000 end an answer
/// that has more.
const MAX_ITEMS: usize = 20_000;

/// What an answer must match.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Rule {
    /// JSON that matches this schema.
    Json(Value),
    /// Text that this regular expression matches as a whole.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// Text of a grammar as llama.cpp writes it.
    Grammar(String),
    /// A call of one of these tools, in this style.
    Call(Vec<Value>, CallStyle),
    /// Any text in which calls of strict tools fit their schemas.
    Strict(StrictTools),
}

impl Rule {
    /// Refuses a rule that is too large. Takes a millisecond at most, however large it is.
    fn check(&self) -> Result<(), ApiError> {
        let checked = match self {
            Self::Json(schema) => bounds::check_sizes([schema]),
            Self::Regex(regex) => bounds::check_expression(regex),
            Self::Choice(texts) => bounds::check_choices(texts),
            // It is checked while it is read.
            Self::Grammar(_) => Ok(()),
            Self::Call(tools, _) => bounds::check_sizes(tools),
            Self::Strict(tools) => bounds::check_sizes(tools.strict()),
        };
        checked.map_err(ApiError::invalid)
    }

    /// What llguidance compiles of a rule that is not too large, or why it must not.
    fn grammar(&self, limits: &ParserLimits) -> Result<GrammarInit, String> {
        match self {
            Self::Json(schema) => Ok(of_schema(checked_schema(schema)?)),
            Self::Regex(regex) => parts::grammar(&[Part::Expression(regex.clone())], limits),
            Self::Choice(texts) => {
                let texts = texts.iter().map(|text| Part::Text(text.clone())).collect();
                parts::grammar(&[Part::Or(texts)], limits)
            }
            Self::Grammar(grammar) => parts::grammar(&gbnf::rules(grammar)?, limits),
            Self::Call(tools, style) => {
                let schema = calls::schema(tools, *style)?;
                Ok(match style {
                    CallStyle::Bare => of_schema(schema),
                    // Models that write tags read JSON between the same tags too.
                    CallStyle::Hermes | CallStyle::Tags => of_lark(format!(
                        "start: \"<tool_call>\\n\" call \"\\n</tool_call>\"\n\
                         call: %json {schema}"
                    )),
                })
            }
            Self::Strict(_) => Err("each opening of a call has its grammar".to_owned()),
        }
    }
}

fn of_schema(schema: Value) -> GrammarInit {
    GrammarInit::Serialized(TopLevelGrammar::from_json_schema(schema))
}

/// A grammar in llguidance's language, for what [`parts`] cannot say: text around JSON.
fn of_lark(grammar: String) -> GrammarInit {
    GrammarInit::Serialized(TopLevelGrammar::from_lark(grammar))
}

/// A schema of a bounded size, rewritten for llguidance and checked again: what is rewritten may be
/// larger.
fn checked_schema(schema: &Value) -> Result<Value, String> {
    bounds::check_shape(schema)?;
    let schema = dialect::rewritten(schema);
    bounds::check_sizes([&schema])?;
    bounds::check_shape(&schema)?;
    Ok(with_form(schema))
}

/// One line, one space after commas and colons: a small model must not lose itself in white space.
/// Of `oneOf`, one option or more may hold: "one alone" cannot be followed token by token.
fn with_form(mut schema: Value) -> Value {
    if let Some(schema) = schema.as_object_mut() {
        let form = json!({
            "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": ",
            "coerce_one_of": true,
        });
        schema.insert("x-guidance".to_owned(), form);
    }
    schema
}

/// The vocabulary, ready for rules.
pub(crate) struct Grammars(ParserFactory);

impl Grammars {
    /// Reads a vocabulary; `end` is the token that ends an answer.
    pub(crate) fn new(tokenizer: &Tokenizer, end: u32) -> Result<Self, ApiError> {
        let words: Vec<Vec<u8>> = (0..tokenizer.vocab_size())
            .map(|id| {
                let bytes = tokenizer.token_bytes(id).unwrap_or_default();
                match tokenizer.is_special(id) {
                    true => [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat(),
                    false => bytes.to_vec(),
                }
            })
            .collect();
        let trie = TokTrie::from(&TokRxInfo::new(tokenizer.vocab_size(), end), &words);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = llguidance::earley::SlicedBiasComputer::json_slices();
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
            .map_err(|_| ApiError::fault("this model's tokens cannot be constrained"))?;
        factory.quiet();
        let limits = factory.limits_mut();
        limits.verbose_errors = false;
        limits.max_lexer_states = MAX_LEXER_STATES;
        limits.max_grammar_size = MAX_GRAMMAR_SYMBOLS;
        limits.max_items_in_row = MAX_ITEMS;
        Ok(Self(factory))
    }

    /// What follows a rule, compiled on a thread that has stack enough. Refusals name `param`, the
    /// field that the rule comes from.
    pub(crate) fn compile(
        &self,
        rule: &Rule,
        param: &'static str,
    ) -> Result<Box<dyn Constraint>, ApiError> {
        let parser = rule.check().and_then(|()| self.parser(|| rule.grammar(self.0.limits())));
        let parser = parser.map_err(|error| error.param(param))?;
        Ok(Box::new(Follower { matcher: Matcher::new(Ok(parser)), param, past_end: 0 }))
    }

    /// The parser of a grammar, which is written on a thread that has stack enough, too.
    fn parser(
        &self,
        grammar: impl FnOnce() -> Result<GrammarInit, String> + Send,
    ) -> Result<TokenParser, ApiError> {
        let thread = std::thread::Builder::new().name("grammar".into()).stack_size(STACK_BYTES);
        std::thread::scope(|scope| {
            let compiling = thread.spawn_scoped(scope, move || {
                let grammar = grammar().map_err(ApiError::invalid)?;
                // What a parser was made from goes deep too, and is gone when this returns.
                let parser = self.0.create_parser_from_init_default(grammar);
                parser.map_err(|error| ApiError::invalid(refusals::in_plain_words(error)))
            });
            let busy = |_| ApiError::unavailable("there is no memory to compile the rule");
            let compiled = compiling.map_err(busy)?.join();
            let failed = |_| ApiError::invalid("the rule for the answer cannot be compiled");
            compiled.map_err(failed)?
        })
    }
}

/// What makes an answer JSON that matches a schema, for a caller with an engine and no server.
/// `end` is the token that ends an answer. Fails if the schema cannot be followed.
pub fn schema_constraint(
    tokenizer: &Tokenizer,
    end: u32,
    schema: &Value,
) -> Result<Box<dyn Constraint>, String> {
    let grammars = Grammars::new(tokenizer, end);
    let rule = Rule::Json(schema.clone());
    let compiled = grammars.and_then(|grammars| grammars.compile(&rule, "schema"));
    compiled.map_err(ApiError::into_message)
}

/// The state of an answer within a grammar.
struct Follower {
    matcher: Matcher,
    /// The field that the rule comes from.
    param: &'static str,
    /// Accepted tokens after the grammar's end, which the matcher does not count.
    past_end: usize,
}

impl Follower {
    /// Why the answer cannot go on: the field and the reason, as [`ApiError`] takes them apart.
    fn refusal(&self, error: &impl fmt::Display) -> String {
        format!("{}: {}", self.param, refusals::in_plain_words(error.to_string()))
    }
}

impl fmt::Debug for Follower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Follower")
    }
}

impl Constraint for Follower {
    fn allow(&mut self, mask: &mut [u32]) -> Result<(), String> {
        let allowed = self.matcher.compute_mask_or_eos();
        let allowed = allowed.map_err(|error| self.refusal(&error))?;
        for (word, allowed) in mask.iter_mut().zip(allowed.as_slice()) {
            *word = *allowed;
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        // Once the grammar has ended, only the token that ends the answer may follow; the grammar
        // does not contain it.
        if self.matcher.is_stopped() {
            self.past_end += 1;
            return Ok(());
        }
        self.matcher.consume_token(token).map_err(|error| self.refusal(&error))
    }

    fn roll_back(&mut self, n: usize) -> Result<(), String> {
        let past_end = n.min(self.past_end);
        self.past_end -= past_end;
        self.matcher.rollback(n - past_end).map_err(|error| self.refusal(&error))
    }

    fn boxed_clone(&self) -> Box<dyn Constraint> {
        let Self { param, past_end, .. } = *self;
        Box::new(Self { matcher: self.matcher.deep_clone(), param, past_end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: &str = "<|im_end|>";

    fn tokenizer() -> Tokenizer {
        let json = include_bytes!("../../../../assets/weft-tiny/tokenizer.json");
        Tokenizer::from_bytes(json).unwrap()
    }

    /// Whether the rule accepts a text as a whole.
    pub(super) fn follows(rule: &Rule, text: &str) -> bool {
        let tokenizer = tokenizer();
        let end = tokenizer.id_of(END).unwrap();
        let grammars = Grammars::new(&tokenizer, end).unwrap();
        let mut follower = grammars.compile(rule, "x").unwrap();
        let mut tokens = tokenizer.encode_text(text).unwrap();
        tokens.push(end);
        tokens.iter().all(|token| {
            let mut mask = vec![0; tokenizer.vocab_size().div_ceil(32) as usize];
            follower.allow(&mut mask).is_ok()
                && mask[*token as usize / 32] >> (token % 32) & 1 == 1
                && follower.accept(*token).is_ok()
        })
    }

    #[test]
    fn schemas_are_followed_to_their_end() {
        let rule = Rule::Json(json!({
            "type": "object",
            "properties": {"name": {"$ref": "#/$defs/name"}, "age": {"type": "integer"}},
            "required": ["name", "age"],
            "additionalProperties": false,
            "$defs": {"name": {"type": "string", "maxLength": 8}},
        }));
        assert!(follows(&rule, "{\"name\": \"Ann\", \"age\": 7}"));
        for wrong in ["", "{\"name\": \"Ann\"}", "{\"name\": 1, \"age\": 7}", "Sure: {}"] {
            assert!(!follows(&rule, wrong), "{wrong}");
        }
        let any = Rule::Json(json!({"type": "object"}));
        assert!(follows(&any, "{\"a\": [1, {\"b\": null}]}") && !follows(&any, "[1]"));
        assert!(!follows(&any, "{\"a\": \"<|im_end|>"), "a special token is not text");
    }

    #[test]
    fn objects_have_the_properties_that_are_listed_and_no_others() {
        let integer = json!({"type": "integer"});
        let listed = Rule::Json(json!({"type": "object", "properties": {"a": integer}}));
        assert!(follows(&listed, "{\"a\": 1}") && !follows(&listed, "{\"a\": 1, \"b\": 2}"));
        let all = Rule::Json(json!({"allOf": [{"type": "object", "properties": {"a": integer}},
            {"type": "object", "properties": {"b": integer}}]}));
        assert!(follows(&all, "{\"a\": 1, \"b\": 2}"), "each leaves room for the other");
        let named = json!({"type": "object", "propertyNames": {"enum": ["x.y", "z"]},
            "additionalProperties": integer});
        assert!(follows(&Rule::Json(named.clone()), "{\"x.y\": 1, \"z\": 2}"));
        assert!(!follows(&Rule::Json(named), "{\"xzy\": 1}"));
        let tool = json!({"type": "function", "function": {"name": "now"}});
        let call = |arguments| {
            let json = format!("{{\"name\": \"now\", \"arguments\": {arguments}}}");
            format!("<tool_call>\n{json}\n</tool_call>")
        };
        let rule = Rule::Call(vec![tool], CallStyle::Hermes);
        assert!(follows(&rule, &call("{}")) && !follows(&rule, &call("{\"a\": 1}")));
        let tool = json!({"type": "function", "function": {"name": "now", "parameters": {}}});
        let rule = Rule::Call(vec![tool], CallStyle::Hermes);
        assert!(follows(&rule, &call("{\"a\": 1}")) && !follows(&rule, &call("[1]")));
    }

    #[test]
    fn calls_have_the_style_of_their_model() {
        let tool = json!({"type": "function", "function": {"name": "now", "parameters": {}}});
        let rule = Rule::Call(vec![tool], CallStyle::Bare);
        assert!(follows(&rule, "{\"name\": \"now\", \"parameters\": {\"a\": 1}}"));
        for wrong in
            ["{\"name\": \"now\", \"arguments\": {}}", "{\"name\": \"x\", \"parameters\": {}}"]
        {
            assert!(!follows(&rule, wrong), "{wrong}");
        }
    }

    /// A grammar of JSON as llama.cpp's users write it.
    const JSON_GRAMMAR: &str = r#"
        root ::= object
        value ::= object | array | string | number | ("true" | "false" | "null") ws
        object ::=
          "{" ws (
            string ":" ws value ("," ws string ":" ws value)*
          )? "}" ws   # members
        array ::= "[" ws ( value ("," ws value)* )? "]" ws
        string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
        number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
        ws ::= | " " | "\n" [ \t]{0,20}
    "#;

    #[test]
    fn grammars_are_followed_to_their_end() {
        let json = Rule::Grammar(JSON_GRAMMAR.into());
        for right in ["{}", "{\"a\": [1, -2.5e3, {\"b\": null}],\n \"c\": \"x\\n\\u00e9\"}"] {
            assert!(follows(&json, right), "{right}");
        }
        for wrong in ["", "[1]", "{\"a\": }", "{\"a\": 01}", "{\"a\": 1"] {
            assert!(!follows(&json, wrong), "{wrong}");
        }
        let nested = Rule::Grammar("root ::= \"(\" root? \")\"".into());
        assert!(follows(&nested, "((()))") && !follows(&nested, "(()"));
        let plain =
            Rule::Grammar("root ::= word (\" \" word){1,2}\nword ::= [a-z]+ | \"the\"".into());
        assert!(follows(&plain, "the theme then") && !follows(&plain, "the"));
        let broken = Grammars::new(&tokenizer(), tokenizer().id_of(END).unwrap()).unwrap();
        let error = broken.compile(&Rule::Grammar("root ::= x".into()), "grammar").err().unwrap();
        assert!(error.json().to_string().contains("no rule x"), "{}", error.json());
    }

    #[test]
    fn expressions_and_choices_are_followed_to_their_end() {
        let regex = Rule::Regex("[a-c]{2}(1|2)?".into());
        assert!(follows(&regex, "ab") && follows(&regex, "cb2"));
        assert!(!follows(&regex, "a") && !follows(&regex, "ab3") && !follows(&regex, "abab"));
        let odd = "line\nbreak, \"quote\", \\ and | é 😀";
        let choice = Rule::Choice(vec!["Rome".into(), odd.into()]);
        assert!(follows(&choice, "Rome") && follows(&choice, odd));
        assert!(!follows(&choice, "Rom") && !follows(&choice, "RomeRome"));
        let slashes = Rule::Regex("a/b\\/c\nd".into());
        assert!(follows(&slashes, "a/b/c\nd"), "expressions are taken as they are");
    }

    #[test]
    fn calls_name_a_tool_and_fit_it() {
        let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}},
            "required": ["city"], "additionalProperties": false});
        let tool = json!({"type": "function",
            "function": {"name": "weather", "parameters": parameters}});
        let rule = Rule::Call(vec![tool], CallStyle::Hermes);
        let call = |name: &str, arguments: &str| {
            let json = format!("{{\"name\": \"{name}\", \"arguments\": {arguments}}}");
            format!("<tool_call>\n{json}\n</tool_call>")
        };
        assert!(follows(&rule, &call("weather", "{\"city\": \"Rome\"}")));
        assert!(!follows(&rule, &call("news", "{\"city\": \"Rome\"}")));
        assert!(!follows(&rule, &call("weather", "{}")));
        let parameters = json!({"type": "object", "properties": {"at": {"$ref": "#/$defs/Place"}},
            "required": ["at"], "additionalProperties": false,
            "$defs": {"Place": {"type": "string", "enum": ["Rome", "Oslo"]}}});
        let tool = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
        let rule = Rule::Call(vec![tool("first"), tool("second")], CallStyle::Hermes);
        assert!(follows(&rule, &call("second", "{\"at\": \"Oslo\"}")), "references are found");
        assert!(!follows(&rule, &call("second", "{\"at\": \"Rom\"}")));
    }

    /// Tokens that are taken back leave no trace, from any place, also across the end.
    #[test]
    fn what_is_taken_back_was_never_said() {
        let tokenizer = tokenizer();
        let end = tokenizer.id_of(END).unwrap();
        let grammars = Grammars::new(&tokenizer, end).unwrap();
        let schema = json!({"type": "object", "properties": {"name": {"type": "string"},
            "age": {"type": "integer"}}, "required": ["name", "age"]});
        let rule = Rule::Json(schema);
        let mut tokens = tokenizer.encode_text("{\"name\": \"Ann Lee\", \"age\": 712}").unwrap();
        tokens.push(end);
        let mask = |follower: &mut dyn Constraint| {
            let mut mask = vec![0; tokenizer.vocab_size().div_ceil(32) as usize];
            follower.allow(&mut mask).map(|()| mask)
        };
        let mut plain = grammars.compile(&rule, "x").unwrap();
        let masks: Vec<_> = tokens
            .iter()
            .map(|token| {
                let now = mask(&mut *plain).unwrap();
                plain.accept(*token).unwrap();
                now
            })
            .collect();
        let mut follower = grammars.compile(&rule, "x").unwrap();
        for at in 0..tokens.len() {
            for n in [1, 3, 8, tokens.len()] {
                let ahead = &tokens[at..tokens.len().min(at + n)];
                for (i, token) in ahead.iter().enumerate() {
                    if i % 2 == 0 {
                        assert_eq!(mask(&mut *follower).as_ref(), Ok(&masks[at + i]));
                    }
                    follower.accept(*token).unwrap();
                }
                follower.roll_back(ahead.len()).unwrap();
                assert_eq!(mask(&mut *follower).as_ref(), Ok(&masks[at]), "{n} from {at}");
            }
            follower.accept(tokens[at]).unwrap();
        }
    }

    #[test]
    fn what_is_no_schema_is_refused() {
        let tokenizer = tokenizer();
        let grammars = Grammars::new(&tokenizer, tokenizer.id_of(END).unwrap()).unwrap();
        let huge = json!({"const": "x".repeat(bounds::MAX_TEXT_BYTES + 1)});
        for wrong in [json!({"type": "king"}), json!({"$ref": "http://evil.com/x"}), huge] {
            assert!(grammars.compile(&Rule::Json(wrong.clone()), "x").is_err(), "{wrong}");
        }
        for broken in ["[.*", "a\\", "(?=a)"] {
            let error = grammars.compile(&Rule::Regex(broken.into()), "x").unwrap_err();
            assert!(error.json().to_string().contains("expression"), "{}", error.json());
        }
        // The largest number of properties is accepted, and one more is refused.
        let object = |n: usize| {
            let fields = (0..n).map(|i| (format!("p{i}"), json!({"type": "null"})));
            json!({"anyOf": [{"type": "object", "properties": Value::Object(fields.collect())}]})
        };
        assert!(grammars.compile(&Rule::Json(object(bounds::MAX_PROPERTIES)), "x").is_ok());
        let refused =
            grammars.compile(&Rule::Json(object(bounds::MAX_PROPERTIES + 1)), "x").unwrap_err();
        assert!(format!("{refused:?}").contains("1001 properties"), "{refused:?}");
    }
}
