//! What a rule may cost, checked before it is compiled.
//!
//! llguidance compiles schemas by recursion, writes out every combination of schemas that must hold
//! together, and takes memory in proportion to the square of an expression's length. A stack or a
//! memory that overflows ends the process, so a rule that could get there is refused here. Nothing
//! here goes deeper than the bounds: sizes are counted with a list, and the walk along references
//! stops at [`MAX_DEPTH`].

use std::collections::HashMap;

use serde_json::{Map, Number, Value};

/// Bytes of a rule: all texts of a schema, an expression, all choices together.
pub(super) const MAX_BYTES: usize = 256 << 10;
/// Bytes of one expression: the time and memory that it takes grow with their square.
pub(super) const MAX_EXPRESSION_BYTES: usize = 2 << 10;
/// Bytes of all expressions of a schema together.
pub(super) const MAX_EXPRESSIONS_BYTES: usize = 8 << 10;
/// Bytes of one text that is to be written as it stands. Following it takes its square in memory.
pub(super) const MAX_TEXT_BYTES: usize = 8 << 10;
/// Texts to choose from.
pub(super) const MAX_CHOICES: usize = 2000;
/// Values of a schema: objects, lists, texts, numbers.
pub(super) const MAX_VALUES: usize = 10_000;
/// Properties over all objects of a schema. The time that a grammar takes grows with their square.
pub(super) const MAX_PROPERTIES: usize = 1000;
/// Patterns for names of properties. Each is compared with each.
pub(super) const MAX_PATTERN_PROPERTIES: usize = 32;
/// Schemas inside each other, references followed.
pub(super) const MAX_DEPTH: usize = 256;
/// Schemas that are written out because several must hold at once, or because of an object's
/// properties at least one must be there: then all of them are written out for each. The slowest
/// that were found took 0.15 ms each.
pub(super) const MAX_COMBINATIONS: u64 = 10_000;
/// All `multipleOf` of a schema together, or multiplied where several must hold at once: each is
/// followed by as many states, and numbers that several divide overflow.
const MAX_MULTIPLES: u64 = 50_000;

/// Keywords of a schema that only describe.
const ANNOTATIONS: [&str; 15] = [
    "$anchor",
    "$defs",
    "definitions",
    "$schema",
    "$id",
    "id",
    "$comment",
    "title",
    "description",
    "default",
    "readOnly",
    "writeOnly",
    "examples",
    "contentMediaType",
    "contentEncoding",
];

fn within(n: usize, max: usize, who: &str, what: &str) -> Result<(), String> {
    if n <= max {
        Ok(())
    } else {
        Err(format!("{who} {n} {what}, and the limit is {max}; simplify it"))
    }
}

/// Checks an expression that an answer has to match.
pub(super) fn check_expression(regex: &str) -> Result<(), String> {
    let n = regex.len();
    within(n, MAX_EXPRESSION_BYTES, "the expression has", "bytes")
}

/// Checks texts of which an answer has to be one.
pub(super) fn check_choices(texts: &[String]) -> Result<(), String> {
    let (n, bytes) = (texts.len(), texts.iter().map(String::len).sum::<usize>());
    within(n, MAX_CHOICES, "there are", "choices")?;
    within(bytes, MAX_BYTES, "the choices have", "bytes")?;
    let longest = texts.iter().map(String::len).max().unwrap_or_default();
    within(longest, MAX_TEXT_BYTES, "a choice has", "bytes")
}

/// Checks how large schemas are. Stops at the first bound that is passed.
pub(super) fn check_sizes<'v>(schemas: impl IntoIterator<Item = &'v Value>) -> Result<(), String> {
    let mut sizes = Sizes::default();
    let mut left: Vec<&Value> = schemas.into_iter().collect();
    while let Some(value) = left.pop() {
        sizes.values += 1;
        match value {
            Value::Array(items) => left.extend(items),
            Value::Object(fields) => {
                sizes.add_fields(fields)?;
                left.extend(fields.values());
            }
            Value::String(text) => sizes.add_text(text)?,
            _ => sizes.bytes += 8,
        }
        // What waits is counted too, or a long list would be walked to its end.
        let n = sizes.values + left.len();
        within(n, MAX_VALUES, "the schema has", "values or more")?;
    }
    Ok(())
}

#[derive(Default)]
struct Sizes {
    values: usize,
    bytes: usize,
    properties: usize,
    pattern_properties: usize,
    expression_bytes: usize,
    multiples: u64,
}

impl Sizes {
    fn add_text(&mut self, text: &str) -> Result<(), String> {
        self.bytes += text.len();
        let n = self.bytes;
        within(n, MAX_BYTES, "the schema has", "bytes or more")
    }

    fn add_fields(&mut self, fields: &Map<String, Value>) -> Result<(), String> {
        for (key, value) in fields {
            self.add_text(key)?;
            within(key.len(), MAX_TEXT_BYTES, "a name has", "bytes")?;
            match (key.as_str(), value) {
                ("properties", Value::Object(properties)) => self.properties += properties.len(),
                ("patternProperties", Value::Object(patterns)) => {
                    self.pattern_properties += patterns.len();
                    patterns.keys().try_for_each(|pattern| self.add_expression(pattern))?;
                }
                ("pattern", Value::String(pattern)) => self.add_expression(pattern)?,
                ("multipleOf", Value::Number(number)) => {
                    self.multiples = self.multiples.saturating_add(digits_of(number));
                }
                ("const", Value::String(text)) => check_text(text)?,
                ("enum", Value::Array(texts)) => {
                    texts.iter().filter_map(Value::as_str).try_for_each(check_text)?;
                }
                _ => {}
            }
        }
        check_multiples(self.multiples, "together are")?;
        let n = self.properties;
        within(n, MAX_PROPERTIES, "the schemas have", "properties")?;
        let n = self.pattern_properties;
        within(n, MAX_PATTERN_PROPERTIES, "there are", "patterns for properties")
    }

    fn add_expression(&mut self, regex: &str) -> Result<(), String> {
        check_expression(regex)?;
        self.expression_bytes += regex.len();
        let n = self.expression_bytes;
        within(n, MAX_EXPRESSIONS_BYTES, "the expressions of the schema have", "bytes or more")
    }
}

fn check_multiples(n: u64, are: &str) -> Result<(), String> {
    match n <= MAX_MULTIPLES {
        true => Ok(()),
        false => Err(format!(
            "the multipleOf of the schema {are} {n}, without decimal points, and the limit \
             is {MAX_MULTIPLES}"
        )),
    }
}

/// The digits of a number as a whole number: 25 for 2.5, and 100 for 100.
fn digits_of(number: &Number) -> u64 {
    // Of more decimals than these, the compiler says that they are too many.
    const DECIMALS: i32 = 9;
    let number = number.as_f64().unwrap_or(f64::MAX).abs();
    let scaled = |decimals| number * 10_f64.powi(decimals);
    let whole = (0..DECIMALS).map(scaled).find(|scaled| scaled.fract() == 0.0);
    // A conversion takes the nearest number there is.
    whole.unwrap_or_else(|| scaled(DECIMALS)) as u64
}

fn check_text(text: &str) -> Result<(), String> {
    within(text.len(), MAX_TEXT_BYTES, "a text has", "bytes")
}

/// Checks how deep a schema goes if its references are followed, and how many schemas are written
/// out where several must hold at once.
pub(super) fn check_shape(root: &Value) -> Result<(), String> {
    Shape { root, sizes: HashMap::new(), combinations: 0 }.size_of(root, 1).map(drop)
}

/// What a schema comes to if every reference in it is written out.
#[derive(Clone, Copy, Default)]
struct Size {
    /// Schemas, as if no object needed any of its properties.
    n: u64,
    /// The properties that one object has by this schema, at most.
    properties: u64,
    /// Whether at least one of them must be there.
    wants_any: bool,
    /// The number of which others must be multiples; 0 if there is none.
    multiple: u64,
}

impl Size {
    fn of(n: u64) -> Self {
        Self { n, ..Self::default() }
    }

    /// Schemas, all properties of an object written out for each of them if it needs any.
    fn written_out(self) -> u64 {
        if self.wants_any { self.n.saturating_mul(self.properties.max(1)) } else { self.n }
    }

    /// The size of a choice with one more option.
    fn or(self, option: Self) -> Self {
        Self {
            n: self.n.saturating_add(option.n),
            properties: self.properties.max(option.properties),
            wants_any: self.wants_any || option.wants_any,
            multiple: self.multiple.max(option.multiple),
        }
    }
}

/// A walk along references, each followed once: the compiler does the same.
struct Shape<'v> {
    root: &'v Value,
    /// The size of what a reference leads to. Inside itself it counts as one schema.
    sizes: HashMap<&'v str, Size>,
    combinations: u64,
}

impl<'v> Shape<'v> {
    fn size_of(&mut self, schema: &'v Value, depth: usize) -> Result<Size, String> {
        within(depth, MAX_DEPTH, "the schema, references followed, goes", "levels deep or more")?;
        let Some(fields) = schema.as_object() else { return Ok(Size::of(1)) };
        // The keywords between two of these are one part; all parts hold at once.
        let mut parts = Vec::new();
        let mut plain: Option<Size> = None;
        for (key, value) in fields {
            if ANNOTATIONS.contains(&key.as_str()) {
                continue;
            }
            let part = match (key.as_str(), value) {
                ("$ref", Value::String(reference)) => self.target_size(reference, depth)?,
                ("const" | "enum", value) => Size::of(n_values(value)),
                ("anyOf" | "oneOf", Value::Array(options)) => self.sum(options, depth)?,
                ("allOf", Value::Array(all)) => {
                    for schema in all {
                        parts.extend(plain.take());
                        parts.push(self.size_of(schema, depth + 1)?);
                    }
                    continue;
                }
                (key, value) => {
                    let plain = plain.get_or_insert(Size::of(1));
                    let size = self.keyword_size(key, value, depth)?;
                    plain.n = plain.n.saturating_add(size);
                    match (key, value) {
                        ("properties", Value::Object(all)) => plain.properties = all.len() as u64,
                        ("multipleOf", Value::Number(number)) => {
                            plain.multiple = digits_of(number);
                        }
                        ("minProperties", least) => plain.wants_any = least.as_f64() > Some(0.0),
                        _ => {}
                    }
                    continue;
                }
            };
            parts.extend(plain.take());
            parts.push(part);
        }
        let wants_any = plain.is_some_and(|plain| plain.wants_any && plain.properties > 0);
        parts.extend(plain);
        let mut whole = Size::of(1);
        for part in &parts {
            whole.n = whole.n.saturating_mul(part.n);
            whole.properties = whole.properties.saturating_add(part.properties);
            whole.wants_any |= part.wants_any;
            whole.multiple = whole.multiple.max(1).saturating_mul(part.multiple.max(1));
        }
        check_multiples(whole.multiple, "that must hold at once make")?;
        if wants_any || parts.len() > 1 {
            self.combinations = self.combinations.saturating_add(whole.written_out());
            if self.combinations > MAX_COMBINATIONS {
                return Err(format!(
                    "the schemas that must hold at once (allOf, or anyOf, oneOf and $ref beside \
                     other keywords; properties beside minProperties) make {} combinations or \
                     more, and the limit is {MAX_COMBINATIONS}; simplify them",
                    self.combinations
                ));
            }
        }
        Ok(whole)
    }

    fn keyword_size(&mut self, key: &str, value: &'v Value, depth: usize) -> Result<u64, String> {
        let size = match (key, value) {
            ("properties" | "patternProperties", Value::Object(fields)) => {
                self.sum(fields.values(), depth)?
            }
            ("items" | "prefixItems", Value::Array(items)) => self.sum(items, depth)?,
            ("items" | "additionalItems" | "additionalProperties", value) => {
                self.size_of(value, depth + 1)?
            }
            _ => return Ok(0),
        };
        Ok(size.written_out())
    }

    fn sum(
        &mut self,
        schemas: impl IntoIterator<Item = &'v Value>,
        depth: usize,
    ) -> Result<Size, String> {
        schemas
            .into_iter()
            .try_fold(Size::of(1), |sum, schema| Ok(sum.or(self.size_of(schema, depth + 1)?)))
    }

    fn target_size(&mut self, reference: &'v str, depth: usize) -> Result<Size, String> {
        if let Some(size) = self.sizes.get(reference) {
            return Ok(*size);
        }
        self.sizes.insert(reference, Size::of(1));
        // The compiler says which reference it is that leads nowhere.
        let Some(target) = resolve(self.root, reference) else { return Ok(Size::of(1)) };
        let size = self.size_of(target, depth + 1)?;
        self.sizes.insert(reference, size);
        Ok(size)
    }
}

/// What a reference leads to, by names as they are written: the compiler does the same.
pub(super) fn resolve<'v>(root: &'v Value, reference: &str) -> Option<&'v Value> {
    if ["#", "#/"].contains(&reference) {
        return Some(root);
    }
    reference.strip_prefix("#/")?.split('/').try_fold(root, |value, step| match value {
        Value::Array(items) => items.get(step.parse::<usize>().ok()?),
        value => value.get(step),
    })
}

fn n_values(value: &Value) -> u64 {
    let (mut n, mut left) = (0, vec![value]);
    while let Some(value) = left.pop() {
        n += 1;
        match value {
            Value::Array(items) => left.extend(items),
            Value::Object(fields) => left.extend(fields.values()),
            _ => {}
        }
    }
    n
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn properties(n: usize) -> Value {
        let fields = (0..n).map(|i| (format!("p{i}"), json!({"type": "null"})));
        Value::Object(fields.collect())
    }

    /// "At least one of these properties" is compiled as all of them, once for each.
    #[test]
    fn objects_that_need_any_of_their_properties_are_written_out() {
        let one = |n| json!({"type": "object", "properties": properties(n), "minProperties": 1});
        let apart = |n| {
            json!({"allOf": [{"minProperties": 1}, {"$ref": "#/$defs/all"}],
            "$defs": {"all": {"type": "object", "properties": properties(n)}}})
        };
        let option = |n| json!({"anyOf": [one(n)], "type": "object"});
        let none = |n| json!({"type": "object", "properties": properties(n), "minProperties": 0});
        for (schema, most) in [
            (&one as &dyn Fn(usize) -> Value, 98),
            (&apart, 98),
            (&option, 68),
            (&none, MAX_PROPERTIES),
        ] {
            assert_eq!(check_shape(&schema(most)), Ok(()));
            let refused = check_shape(&schema(most + 2));
            if most < MAX_PROPERTIES {
                let refused = refused.unwrap_err();
                assert!(refused.contains("the limit is 10000"), "{refused}");
            }
        }
    }

    #[test]
    fn multiples_are_added_up_or_multiplied() {
        let check = |schema: Value| check_sizes([&schema]).and_then(|()| check_shape(&schema));
        let of = |n: f64| json!({"type": "number", "multipleOf": n});
        let list = |all: &[f64]| {
            let items: Vec<Value> = all.iter().map(|n| of(*n)).collect();
            json!({"type": "array", "prefixItems": items})
        };
        let both = |a: f64, b: f64| json!({"allOf": [of(a), of(b)]});
        for fits in
            [of(50_000.0), of(0.01), of(-7.5), list(&[20_000.0, 2999.9]), both(223.0, 224.0)]
        {
            assert_eq!(check(fits.clone()), Ok(()), "{fits}");
        }
        for (refused, n) in [
            (of(1_000_003.0), "1000003"),
            (of(99_991.5), "999915"),
            (list(&[40_000.0, 10_001.0]), "50001"),
            (both(224.0, 224.0), "50176"),
            (of(1e300), "18446744073709551615"),
        ] {
            let refused = check(refused).unwrap_err();
            assert!(refused.contains(n) && refused.contains("limit is 50000"), "{refused}");
        }
    }

    #[test]
    fn combinations_are_counted_to_their_limit() {
        let both = |n: usize| {
            let options = vec![json!({"type": "object", "required": ["a"]}); n];
            json!({"allOf": [{"anyOf": options}, {"anyOf": options}]})
        };
        assert_eq!(check_shape(&both(99)), Ok(()));
        let refused = check_shape(&both(100)).unwrap_err();
        assert!(refused.contains("make 10201 combinations"), "{refused}");
    }
}
